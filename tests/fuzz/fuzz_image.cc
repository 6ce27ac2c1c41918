#include <vector>

#include "muster/data/readers/image_codec.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_image(const std::string& text) {
  for (const int64_t side : {0, 5}) {
    std::vector<uint8_t> pixels;
    answer_or_error([&] {
      decode_image(text, "fuzz", {.min_side = side, .max_pixels = 1 << 16},
                   [&](int64_t height, int64_t width) {
                     pixels.resize(static_cast<size_t>(height * width * 3));
                     return pixels.data();
                   });
    });
  }
}

}  // namespace muster
