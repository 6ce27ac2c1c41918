#include <cstdlib>

#include "muster/data/readers/tar_reader.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_tar(const std::string& text) {
  constexpr int kMostFiles = 1000;  // a few compressed bytes can hold millions
  answer_or_error([&] {
    TarReader tar(text, "fuzz");
    for (int files = 0; files < kMostFiles && tar.next(); ++files)
      if (files % 2 == 0 && tar.read(1 << 20).size() > 1 << 20)
        std::abort();
  });
}

}  // namespace muster
