#include "muster/run/rank_software.h"

#include <torch/version.h>

#include <fstream>
#include <string>
#include <string_view>

#include "muster/base/strings.h"
#include "muster/trace/activity.h"

namespace muster {

namespace {

// Returns the kernel's name of the processor, "AMD EPYC 9R14", or "CPU" where it has none.
std::string cpu_model() {
  constexpr std::string_view kKey = "model name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(kKey) && colon != npos)
      return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace

// A rank that the plan gives a GPU may run on the CPU: the machine may be simulated.
void tell_software(const ProcessGroup& group, const DeviceAssignment& device) {
  Activity* const activity = Activity::get();
  if (activity == nullptr)
    return;
  const bool is_gpu = device.is_gpu() && group.device().is_cuda();
  activity->set_software({.libtorch = TORCH_VERSION,
                          .backend = group.backend(),
                          .device_name = is_gpu ? device.model : cpu_model()});
}

}  // namespace muster
