#include "muster/device/readers/fleet_toml.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {
namespace {

constexpr size_t kMaxCheckedHosts = 64;  // turning a large fleet into JSON and back takes seconds

Host captured(const std::string& path) {
  if (path.empty())
    throw Error(ErrorCode::io, "cannot open ''");
  Gpu gpu;
  gpu.uuid.value = "GPU-11111111-1111-4111-a111-111111111111";
  gpu.mig = {{.uuid = {"MIG-11111111-1111-4111-a111-111111111111"}}};
  return {.name = "captured", .gpus = {gpu}, .gpu_links = {{{LinkKind::self, 0}}}};
}

}  // namespace

void fuzz_fleet(const std::string& text) {
  answer_or_error([&] {
    Inventory fleet{
        .source = "fuzz", .simulated = true, .hosts = fleet_hosts(text, "fuzz", captured)};
    if (fleet.hosts.size() > kMaxCheckedHosts)
      fleet.hosts.resize(kMaxCheckedHosts);
    check_inventory(fleet);
  });
}

}  // namespace muster
