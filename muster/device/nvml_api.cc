// Every function is looked up by name, so one that a driver does not have costs only what it tells.
#include "muster/device/nvml_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <initializer_list>

#include "muster/base/contains.h"
#include "muster/base/strings.h"

namespace muster::nvml {
namespace {

// Sets `function` to the first of `names` that the library has; newer versions of a function stand
// first. A function that it has under none of them stays null.
template <class Function>
void find(void* library, Function& function, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (void* const symbol = dlsym(library, name)) {
      function = reinterpret_cast<Function>(symbol);
      return;
    }
  }
}

}  // namespace

bool is_harmless(Return code) {
  return is_one_of(
      code, kSuccess, kNotSupported, kNoPermission, kNotFound, kFunctionNotFound, kNoData);
}

std::string linux_pci_address(const std::string& bus_id) {
  // Linux writes the domain with four digits at least.
  const size_t colon = std::min(bus_id.find(':'), bus_id.size());
  size_t from = 0;
  while (colon - from > 4 && bus_id[from] == '0')
    ++from;
  return lower_case(bus_id.substr(from));
}

Api::Api(const std::string& library) : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    const char* const reason = dlerror();
    error_ = cat("cannot load ", library, ": ", reason != nullptr ? reason : "unknown reason");
    return;
  }
  load_functions();
  const bool is_complete = init && shutdown && count && handle_by_index && uuid;
  if (!is_complete)
    error_ = cat(library, " lacks functions that every NVML has");
}

Api::~Api() {
  if (library_ != nullptr)
    dlclose(library_);
}

void Api::load_functions() {
  find(library_, init, {"nvmlInit_v2", "nvmlInit"});
  find(library_, shutdown, {"nvmlShutdown"});
  find(library_, error_string_, {"nvmlErrorString"});
  find(library_, driver_version, {"nvmlSystemGetDriverVersion"});
  find(library_, count, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"});
  find(library_, handle_by_index, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"});
  find(library_, uuid, {"nvmlDeviceGetUUID"});
  find(library_, name, {"nvmlDeviceGetName"});
  find(library_, pci_info, {"nvmlDeviceGetPciInfo_v3"});
  long_bus_id = pci_info != nullptr;
  if (!long_bus_id)
    find(library_, pci_info, {"nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"});
  find(library_, memory, {"nvmlDeviceGetMemoryInfo"});
  find(library_, compute_capability, {"nvmlDeviceGetCudaComputeCapability"});
  find(library_, total_ecc_errors, {"nvmlDeviceGetTotalEccErrors"});
  load_optional_functions();
}

void Api::load_optional_functions() {
  find(library_, retired_pages_pending, {"nvmlDeviceGetRetiredPagesPendingStatus"});
  find(library_, remapped_rows, {"nvmlDeviceGetRemappedRows"});
  find(library_, max_pcie_generation, {"nvmlDeviceGetMaxPcieLinkGeneration"});
  find(library_, max_pcie_width, {"nvmlDeviceGetMaxPcieLinkWidth"});
  find(library_, cpu_affinity, {"nvmlDeviceGetCpuAffinity"});
  find(library_, utilization, {"nvmlDeviceGetUtilizationRates"});
  find(library_, temperature, {"nvmlDeviceGetTemperature"});
  find(library_, power_milliwatts, {"nvmlDeviceGetPowerUsage"});
  find(library_, power_limit_milliwatts, {"nvmlDeviceGetPowerManagementLimit"});
  find(library_,
       processes,
       {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  find(library_, processes_v1, {"nvmlDeviceGetComputeRunningProcesses"});
  find(library_, mig_mode, {"nvmlDeviceGetMigMode"});
  find(library_, max_mig_devices, {"nvmlDeviceGetMaxMigDeviceCount"});
  find(library_, mig_device, {"nvmlDeviceGetMigDeviceHandleByIndex"});
  find(library_, attributes, {"nvmlDeviceGetAttributes_v2"});
  find(library_, nvlink_state, {"nvmlDeviceGetNvLinkState"});
  find(library_, nvlink_remote_type, {"nvmlDeviceGetNvLinkRemoteDeviceType"});
  find(library_, nvlink_remote_pci, {"nvmlDeviceGetNvLinkRemotePciInfo_v2"});
  find(library_, common_ancestor, {"nvmlDeviceGetTopologyCommonAncestor"});
  find(library_, c2c_mode, {"nvmlDeviceGetC2cModeInfoV"});
}

std::string Api::text(Return code) const {
  const char* const words = error_string_ != nullptr ? error_string_(code) : nullptr;
  return words != nullptr ? words : cat("NVML error ", code);
}

}  // namespace muster::nvml
