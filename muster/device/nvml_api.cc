// Every function is looked up by name, so one that a driver does not have costs only what it tells.
#include "muster/device/nvml_api.h"

#include <dlfcn.h>

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/strings.h"

namespace muster::nvml {

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
  if (!long_bus_id)
    pci_info = find("nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo");
  const bool is_complete = init && shutdown && count && handle_by_index && uuid;
  if (!is_complete)
    error_ = cat(library, " lacks functions that every NVML has");
}

Api::~Api() {
  if (library_ != nullptr)
    dlclose(library_);
}

LoadedLibrary::Address Api::find(const char* function, const char* before) const {
  void* const address = library_ == nullptr ? nullptr : dlsym(library_, function);
  if (address == nullptr && before != nullptr)
    return find(before);
  return {address};
}

std::string Api::text(Return code) const {
  const char* const words = error_string_ != nullptr ? error_string_(code) : nullptr;
  return words != nullptr ? words : cat("NVML error ", code);
}

}  // namespace muster::nvml
