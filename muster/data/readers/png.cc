// PNG files as images, by libpng, which is told to make three channels of 8 bits of whatever is
// stored. Rows of an interlaced picture come in several passes, so a part is cut out of the whole.
#include <png.h>

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/data/readers/image_formats.h"
#include "muster/data/readers/orientation.h"

namespace muster {

namespace {

constexpr png_uint_32 kMostSide = 1 << 20;

// libpng leaves by longjmp, as libjpeg does: jpeg.cc says what follows from that.
class PngDecoder : NoCopy {
 public:
  explicit PngDecoder(std::string_view file) : rest_(file) {
    png_ = ::png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
    info_ = png_ == nullptr ? nullptr : ::png_create_info_struct(png_);
    if (info_ == nullptr)
      std::snprintf(message_, sizeof(message_), "libpng did not start");
  }
  ~PngDecoder() { ::png_destroy_read_struct(&png_, &info_, nullptr); }

  bool read_header() {
    if (info_ == nullptr || setjmp(jump_) != 0)
      return false;
    ::png_set_read_fn(png_, this, read);
    ::png_set_user_limits(png_, kMostSide, kMostSide);
    ::png_read_info(png_, info_);
    // The depth is noted before libpng is told to strip 16 bits, so that the caller can refuse
    // them.
    is_wide_ = ::png_get_bit_depth(png_, info_) == 16;
    ::png_set_expand(png_);
    ::png_set_strip_16(png_);
    ::png_set_strip_alpha(png_);
    ::png_set_gray_to_rgb(png_);
    ::png_set_interlace_handling(png_);
    ::png_read_update_info(png_, info_);
    return true;
  }

  bool decode(png_bytep* rows) {
    if (setjmp(jump_) != 0)
      return false;
    ::png_read_image(png_, rows);
    ::png_read_end(png_, nullptr);
    return true;
  }

  int64_t height() const { return ::png_get_image_height(png_, info_); }
  int64_t width() const { return ::png_get_image_width(png_, info_); }
  size_t row_bytes() const { return ::png_get_rowbytes(png_, info_); }
  bool is_wide() const { return is_wide_; }  // as stored
  std::string failure() const { return message_; }

 private:
  static void fail(png_structp png, png_const_charp message) {
    auto* const self = static_cast<PngDecoder*>(::png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof(self->message_), "%s", message);
    std::longjmp(self->jump_, 1);
  }

  // libpng asks for its bytes here. png_error() does not return.
  static void read(png_structp png, png_bytep into, size_t size) {
    auto* const self = static_cast<PngDecoder*>(::png_get_io_ptr(png));
    if (size > self->rest_.size())
      ::png_error(png, "cut short");
    std::memcpy(into, self->rest_.data(), size);
    self->rest_.remove_prefix(size);
  }

  std::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  bool is_wide_ = false;
  std::jmp_buf jump_{};
  char message_[256] = "";
};

[[noreturn]] void refuse_png(const std::string& name, const std::string& why) {
  refuse_image(name, cat("a PNG of which libpng says: ", why));
}

[[noreturn]] void refuse_wide(const std::string& name) {
  throw invalid_argument(
      "image: expected 8 bits a channel in '",
      name,
      "', got a PNG of 16; set narrow_16_bits to keep the upper 8, or convert it");
}

// Throws before any pixel is decoded, for what the header says.
ImageSize header_of_png(PngDecoder& decoder, const std::string& name, const ImageOptions& options) {
  if (!decoder.read_header())
    refuse_png(name, decoder.failure());
  check_pixels(decoder.height(), decoder.width(), name, options);
  if (decoder.is_wide() && !options.narrow_16_bits)
    refuse_wide(name);
  return {.height = decoder.height(), .width = decoder.width()};
}

// Decodes the picture, or a part of it, as it is stored.
void decode_stored_png(PngDecoder& decoder,
                       const ImageSize& size,
                       const std::string& name,
                       const ImagePart* part,
                       const PlaceForPixels& place) {
  const int64_t height = size.height, width = size.width;
  // The rows below have room for three bytes a pixel, whatever libpng makes of the file.
  if (std::cmp_not_equal(decoder.row_bytes(), 3 * width))
    refuse_png(name, "rows of an unknown kind");
  decode_whole(size, part, place, [&](uint8_t* pixels) {
    std::vector<png_bytep> rows(height);
    for (const int64_t y : indices_below(height))
      rows[y] = pixels + 3 * width * y;
    if (!decoder.decode(rows.data()))
      refuse_png(name, decoder.failure());
  });
}

}  // namespace

StoredImage open_png(std::string_view file, const std::string& name, const ImageOptions& options) {
  const auto decoder = std::make_shared<PngDecoder>(file);
  const ImageSize size = header_of_png(*decoder, name, options);
  return {.size = size,
          .orientation = png_orientation(file),
          .decode = [=](const ImagePart* part, const PlaceForPixels& place) {
            decode_stored_png(*decoder, size, name, part, place);
          }};
}

}  // namespace muster
