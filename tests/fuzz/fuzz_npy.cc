#include <cstdlib>

#include "muster/data/readers/npy_header.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_npy(const std::string& text) {
  answer_or_error([&] {
    const NpyHeader header = parse_npy_header(text, "fuzz");
    auto bytes = static_cast<uint64_t>(header.item_size);
    for (const int64_t extent : header.shape)
      bytes *= static_cast<uint64_t>(extent);
    if (header.data_begin + bytes != text.size())
      std::abort();
  });
}

}  // namespace muster
