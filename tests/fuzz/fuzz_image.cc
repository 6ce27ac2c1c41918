#include <cstdlib>
#include <vector>

#include "muster/data/readers/image_codec.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

struct FuzzedPixels {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> bytes;

  PlaceForPixels place() {
    return [this](int64_t rows, int64_t columns) {
      height = rows;
      width = columns;
      bytes.assign(static_cast<size_t>(rows * columns * 3), 0);
      return bytes.data();
    };
  }
};

// A part of a picture that can be decoded has the pixels of the whole.
void check_image_part(const std::string& text,
                      const ImageOptions& options,
                      const FuzzedPixels& whole) {
  const auto seed = static_cast<int64_t>(text.size());
  ImagePart part{.top = seed % whole.height, .left = seed / 3 % whole.width};
  part.height = 1 + seed / 5 % (whole.height - part.top);
  part.width = 1 + seed / 7 % (whole.width - part.left);
  FuzzedPixels cut;
  decode_pixels(text, "fuzz", options, &part, cut.place());
  for (int64_t i = 0; i < std::ssize(cut.bytes); ++i) {
    const int64_t row = i / (3 * part.width);
    const int64_t at = ((part.top + row) * whole.width + part.left) * 3 + i % (3 * part.width);
    if (cut.bytes[static_cast<size_t>(i)] != whole.bytes[static_cast<size_t>(at)])
      std::abort();
  }
}

}  // namespace

void fuzz_image(const std::string& text) {
  for (const int64_t side : {0, 5}) {
    const ImageOptions options{.min_side = side, .max_pixels = 1 << 16};
    FuzzedPixels whole;
    bool is_whole = false;
    answer_or_error([&] {
      decode_pixels(text, "fuzz", options, nullptr, whole.place());
      is_whole = true;
    });
    if (is_whole)
      check_image_part(text, options, whole);
    FuzzedPixels corner;  // of a damaged one, too
    answer_or_error([&] {
      const ImageSize size = size_of_image(text, "fuzz", options);
      const ImagePart middle{
          .top = size.height / 2, .left = size.width / 2, .height = 1, .width = 1};
      decode_pixels(text, "fuzz", options, &middle, corner.place());
    });
  }
}

}  // namespace muster
