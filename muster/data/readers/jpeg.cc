// JPEG files as images, by libjpeg. The header gives size, scale and orientation. A part is decoded
// alone where libjpeg can cut it exactly, and otherwise cut out of the whole. A picture that lies
// on its side is decoded as it is stored, and turned afterwards.
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <jpeglib.h>
// after jpeglib.h
#include <jerror.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/data/readers/image_formats.h"
#include "muster/data/readers/orientation.h"

namespace muster {

namespace {

// libjpeg makes a pixel's colour of its neighbours' too, and knows none beyond what it decodes:
// with so many columns more on each side a part has the pixels of the whole.
constexpr JDIMENSION kMargin = 2;
// What libjpeg-turbo writes at a multiple of 32 goes past the processor's cache to memory. A row
// that is read again at once is therefore put beside such an address.
constexpr size_t kBesideAligned = 1;
constexpr unsigned kMostMarkerBytes = 0xffff;  // all of it
constexpr int kMostScans = 500;  // a few bytes can ask for thousands, each as dear as a picture

// libjpeg leaves by longjmp, which destroys nothing. So each call that may fail is in a function
// that holds nothing to destroy, and says whether it came through.
class JpegDecoder : NoCopy {
 public:
  explicit JpegDecoder(std::string_view file) {
    jpeg_.err = ::jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = [](j_common_ptr jpeg) {
      fail(jpeg);
    };
    errors_.emit_message = [](j_common_ptr jpeg, int level) {
      judge(jpeg, level);
    };
    // libjpeg's own function would print to stderr.
    errors_.output_message = [](j_common_ptr) {
    };
    progress_.progress_monitor = [](j_common_ptr jpeg) {
      count_scans(jpeg);
    };
    created_ = create(file);
  }
  ~JpegDecoder() { ::jpeg_destroy_decompress(&jpeg_); }

  // EXIF lies in the marker APP1, so libjpeg must keep it. libjpeg makes no RGB of four colours, so
  // to_rgb() does.
  bool read_header() {
    if (!created_ || setjmp(jump_) != 0)
      return false;
    ::jpeg_save_markers(&jpeg_, JPEG_APP0 + 1, kMostMarkerBytes);
    ::jpeg_read_header(&jpeg_, TRUE);
    const bool four = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = four ? JCS_CMYK : JCS_RGB;
    return true;
  }

  // Halves the scale while the shorter side keeps at least `min_side` pixels.
  bool choose_scale(int64_t min_side) {
    if (setjmp(jump_) != 0)
      return false;
    jpeg_.scale_denom = 8;
    jpeg_.scale_num = 8;
    const int64_t side = std::min(jpeg_.image_width, jpeg_.image_height);
    while (min_side > 0 && jpeg_.scale_num > 1 && side * jpeg_.scale_num / 2 >= min_side * 8)
      jpeg_.scale_num /= 2;
    ::jpeg_calc_output_dimensions(&jpeg_);
    return true;
  }

  // Several scans can leave coefficients open, and libjpeg guesses them from those around, beyond
  // any margin. Other ratios of colour to light than 1 and 2 it does not cut right at every scale
  // (2.1).
  bool can_cut() {
    return ::jpeg_has_multiple_scans(&jpeg_) == FALSE && jpeg_.max_h_samp_factor <= 2 &&
           jpeg_.max_v_samp_factor <= 2;
  }

  // `row`: room for width() × 4 bytes, where is_cmyk().
  bool decode(uint8_t* pixels, uint8_t* row) {
    if (setjmp(jump_) != 0)
      return false;
    ::jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      uint8_t* const line = pixels + size_t{3} * jpeg_.output_width * jpeg_.output_scanline;
      JSAMPROW into = is_cmyk() ? row : line;
      ::jpeg_read_scanlines(&jpeg_, &into, 1);
      if (is_cmyk())
        to_rgb(row, line, jpeg_.output_width);
    }
    ::jpeg_finish_decompress(&jpeg_);
    return true;
  }

  // `row`: room for width() × 4 bytes. Only where can_cut(); nothing can be decoded after that.
  bool decode_part(const ImagePart& part, uint8_t* pixels, uint8_t* row) {
    if (setjmp(jump_) != 0)
      return false;
    ::jpeg_start_decompress(&jpeg_);
    const JDIMENSION left = part.left;
    const JDIMENSION width = part.width;
    JDIMENSION begin = left - std::min(left, kMargin);
    JDIMENSION columns = std::min(left + width + kMargin, jpeg_.output_width) - begin;
    ::jpeg_crop_scanline(&jpeg_, &begin, &columns);  // which takes whole blocks
    const JDIMENSION top = part.top;
    if (top > 0)
      ::jpeg_skip_scanlines(&jpeg_, top);
    const uint8_t* const inside = row + size_t{left - begin} * (is_cmyk() ? 4 : 3);
    for (int64_t y = 0; y < part.height; ++y) {
      uint8_t* const line = pixels + int64_t{3} * width * y;
      ::jpeg_read_scanlines(&jpeg_, &row, 1);
      if (is_cmyk()) {
        to_rgb(inside, line, width);
      } else {
        std::memcpy(line, inside, size_t{3} * width);
      }
    }
    return true;
  }

  bool is_cmyk() const { return jpeg_.out_color_space == JCS_CMYK; }
  int64_t full_height() const { return jpeg_.image_height; }
  int64_t full_width() const { return jpeg_.image_width; }
  int64_t height() const { return jpeg_.output_height; }
  int64_t width() const { return jpeg_.output_width; }
  std::string failure() const { return message_; }
  // A file may have several APP1 markers; the first that turns the picture counts.
  int orientation() const {
    for (auto marker = jpeg_.marker_list; marker != nullptr; marker = marker->next) {
      const std::string_view text(reinterpret_cast<const char*>(marker->data), marker->data_length);
      if (const int found = exif_orientation(text); found != 1)
        return found;
    }
    return 1;
  }

 private:
  bool create(std::string_view file) {
    if (setjmp(jump_) != 0)
      return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.client_data = this;
    jpeg_.progress = &progress_;
    ::jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    return true;
  }

  // libjpeg calls this for an error, and must not get control back.
  [[noreturn]] static void fail(j_common_ptr jpeg) {
    auto* const self = static_cast<JpegDecoder*>(jpeg->client_data);
    jpeg->err->format_message(jpeg, self->message_);
    std::longjmp(self->jump_, 1);
  }

  // libjpeg warns of missing and damaged data, and paints it grey.
  static void judge(j_common_ptr jpeg, int level) {
    constexpr int kDamage[] = {
        JWRN_JPEG_EOF, JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_ARITH_BAD_CODE, JWRN_MUST_RESYNC};
    if (level < 0 && contains(kDamage, jpeg->err->msg_code))
      fail(jpeg);
  }

  // Called by libjpeg as it goes; the limit ends a file that would decode for minutes.
  static void count_scans(j_common_ptr jpeg) {
    auto* const self = static_cast<JpegDecoder*>(jpeg->client_data);
    if (self->jpeg_.input_scan_number <= kMostScans)
      return;
    std::snprintf(self->message_, sizeof(self->message_), "more than %d scans", kMostScans);
    std::longjmp(self->jump_, 1);
  }

  // Pillow's arithmetic. CMYK that Adobe's programs have written is inverted.
  void to_rgb(const uint8_t* from, uint8_t* to, JDIMENSION pixels) const {
    const int flip = jpeg_.saw_Adobe_marker ? 0 : 255;
    for (JDIMENSION i = 0; i < pixels; ++i, from += 4, to += 3)
      for (int c = 0; c < 3; ++c)
        to[c] = ((from[c] ^ flip) * (from[3] ^ flip) + 127) / 255;
  }

  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  char message_[JMSG_LENGTH_MAX] = "";
  bool created_ = false;
};

[[noreturn]] void refuse_jpeg(const std::string& name, const JpegDecoder& decoder) {
  refuse_image(name, cat("a JPEG of which libjpeg says: ", decoder.failure()));
}

// Returns the size after scaling, as stored.
ImageSize header_of_jpeg(JpegDecoder& decoder,
                         const std::string& name,
                         const ImageOptions& options) {
  if (!decoder.read_header())
    refuse_jpeg(name, decoder);
  // Of a progressive one libjpeg keeps all coefficients, whatever the scale.
  check_pixels(decoder.full_height(), decoder.full_width(), name, options);
  if (!decoder.choose_scale(options.min_side))
    refuse_jpeg(name, decoder);
  return {.height = decoder.height(), .width = decoder.width()};
}

// Decodes the picture, or a part of it, as it is stored; it may lie on its side.
void decode_stored(JpegDecoder& decoder,
                   const ImageSize& size,
                   const std::string& name,
                   const ImagePart* part,
                   const PlaceForPixels& place) {
  if (part != nullptr && decoder.can_cut()) {
    std::vector<uint8_t> row(4 * size.width + kBesideAligned);
    uint8_t* const pixels = place(part->height, part->width);
    if (!decoder.decode_part(*part, pixels, row.data() + kBesideAligned))
      refuse_jpeg(name, decoder);
    return;
  }
  std::vector<uint8_t> row(decoder.is_cmyk() ? 4 * size.width : 0);
  decode_whole(size, part, place, [&](uint8_t* pixels) {
    if (!decoder.decode(pixels, row.data()))
      refuse_jpeg(name, decoder);
  });
}

}  // namespace

StoredImage open_jpeg(std::string_view file, const std::string& name, const ImageOptions& options) {
  const auto decoder = std::make_shared<JpegDecoder>(file);
  const ImageSize size = header_of_jpeg(*decoder, name, options);
  return {.size = size,
          .orientation = decoder->orientation(),
          .decode = [=](const ImagePart* part, const PlaceForPixels& place) {
            decode_stored(*decoder, size, name, part, place);
          }};
}

}  // namespace muster
