#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "muster/base/strings.h"
#include "muster/data/readers/image_formats.h"

namespace muster {

namespace {

constexpr png_uint_32 kMostSide = 1 << 20;

// As with libjpeg (jpeg.cc): libpng leaves by longjmp.
class PngDecoder {
 public:
  explicit PngDecoder(std::string_view file) : rest_(file) {
    png_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
    info_ = png_ == nullptr ? nullptr : ::png_create_info_struct(png_);
    if (info_ == nullptr) std::snprintf(message_, sizeof(message_), "libpng did not start");
  }
  ~PngDecoder() { ::png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  bool read_header() {
    if (info_ == nullptr || setjmp(jump_) != 0) return false;
    ::png_set_read_fn(png_, this, read);
    ::png_set_user_limits(png_, kMostSide, kMostSide);
    ::png_read_info(png_, info_);
    ::png_set_expand(png_);
    ::png_set_strip_16(png_);
    ::png_set_strip_alpha(png_);
    ::png_set_gray_to_rgb(png_);
    ::png_set_interlace_handling(png_);
    ::png_read_update_info(png_, info_);
    return true;
  }

  bool decode(png_bytep* rows) {
    if (setjmp(jump_) != 0) return false;
    ::png_read_image(png_, rows);
    ::png_read_end(png_, nullptr);
    return true;
  }

  int64_t height() const { return ::png_get_image_height(png_, info_); }
  int64_t width() const { return ::png_get_image_width(png_, info_); }
  size_t row_bytes() const { return ::png_get_rowbytes(png_, info_); }
  std::string failure() const { return message_; }

 private:
  static void fail(png_structp png, png_const_charp message) {
    auto* const self = static_cast<PngDecoder*>(::png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof(self->message_), "%s", message);
    std::longjmp(self->jump_, 1);
  }

  static void read(png_structp png, png_bytep into, size_t size) {
    auto* const self = static_cast<PngDecoder*>(::png_get_io_ptr(png));
    if (size > self->rest_.size()) ::png_error(png, "cut short");
    std::memcpy(into, self->rest_.data(), size);
    self->rest_.remove_prefix(size);
  }

  std::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  char message_[256] = "";
};

}  // namespace

void decode_png(std::string_view file, const std::string& name, const ImageOptions& options,
                const PlaceForPixels& place) {
  PngDecoder decoder(file);
  const auto fail = [&](const std::string& why) {
    refuse_image(name, cat("a PNG of which libpng says: ", why));
  };
  if (!decoder.read_header()) fail(decoder.failure());
  const int64_t height = decoder.height();
  const int64_t width = decoder.width();
  check_pixels(height, width, name, options);
  if (decoder.row_bytes() != 3 * static_cast<size_t>(width)) fail("rows of an unknown kind");
  std::vector<png_bytep> rows(static_cast<size_t>(height));
  uint8_t* const pixels = place(height, width);
  for (int64_t y = 0; y < height; ++y) rows[static_cast<size_t>(y)] = pixels + 3 * width * y;
  if (!decoder.decode(rows.data())) fail(decoder.failure());
}

}  // namespace muster
