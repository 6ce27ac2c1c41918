// The entry that libFuzzer calls; MUSTER_FUZZ_TARGET names the function of fuzz_targets.h.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::MUSTER_FUZZ_TARGET(std::string(data, data + size));
  return 0;
}
