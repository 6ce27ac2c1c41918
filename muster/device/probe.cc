#include "muster/device/probe.h"

#include <unistd.h>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr int64_t kMaxCpuSlots = 65536;

int cpu_slots(const ProbeOptions& options) {
  int64_t slots = options.cpu_slots;
  const char* source = "--cpu-slots";
  if (slots == 0) {
    source = "MUSTER_CPU_SLOTS";
    slots = get_env_int(source).value_or(kDefaultCpuSlots);
  }
  if (slots < 1 || slots > kMaxCpuSlots) {
    throw Error(ErrorCode::invalid_argument, cat("devices: expected a number of CPU slots from 1 to ",
                                                 kMaxCpuSlots, " in ", source, ", got ", slots));
  }
  return static_cast<int>(slots);
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace

Inventory probe_this_machine(const ProbeOptions& options) {
  Host host;
  host.name = host_name();
  host.num_cores = usable_cores(options.cores);
  host.cpu_slots = cpu_slots(options);
  if (options.gpus) {
    NvmlReport report = probe_nvml(options.nvml);
    host.gpus = std::move(report.gpus);
    host.driver_version = std::move(report.driver_version);
    host.gpu_note = std::move(report.note);
  } else {
    host.gpu_note = "GPUs were not looked for";
  }
  return {.source = "this machine", .simulated = false, .hosts = {std::move(host)}};
}

}  // namespace muster
