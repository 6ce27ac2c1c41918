#include <cstdlib>
#include <vector>

#include "muster/data/readers/cifar_records.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_cifar(const std::string& text) {
  constexpr CifarKind kKinds[] = {
      {}, {.labels = 2, .label = 0, .classes = 20}, {.labels = 2, .label = 1, .classes = 100}};
  for (const CifarKind& kind : kKinds) {
    answer_or_error([&] {
      const auto count = static_cast<size_t>(count_cifar_records(text, kind, "fuzz"));
      std::vector<uint8_t> pixels(count * kCifarPixels);
      std::vector<int64_t> labels(count, -1);
      read_cifar_records(text, kind, "fuzz", pixels.data(), labels.data());
      for (const int64_t label : labels)
        if (label < 0 || label >= kind.classes)
          std::abort();
      if (count * kind.size() != text.size() || pixels.back() != static_cast<uint8_t>(text.back()))
        std::abort();
    });
  }
}

}  // namespace muster
