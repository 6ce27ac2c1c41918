#include "muster/device/readers/nccl_topology.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_nccl(const std::string& text) {
  answer_or_error([&] {
    check_inventory(
        {.source = "fuzz", .simulated = true, .hosts = nccl_topology_hosts(text, "fuzz")});
  });
}

}  // namespace muster
