#include "muster/device/readers/nvidia_smi_topo.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_topo(const std::string& text) {
  answer_or_error([&] {
    check_inventory(
        {.source = "fuzz", .simulated = true, .hosts = {nvidia_smi_topo_host(text, "fuzz")}});
  });
}

}  // namespace muster
