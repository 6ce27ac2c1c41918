#include "muster/device/nvml.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>

#include "muster/base/env.h"
#include "muster/base/strings.h"
#include "muster/device/nvml_api.h"

namespace muster {
namespace {

constexpr const char* kDefaultLibrary = "libnvidia-ml.so.1";

// An initialised NVML; what `init` took is given back in any case.
class Session {
 public:
  explicit Session(const nvml::Api& api) : api_(api), code_(api.init()) {}
  ~Session() {
    if (code_ == nvml::kSuccess) api_.shutdown();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  nvml::Return code() const { return code_; }

 private:
  const nvml::Api& api_;
  nvml::Return code_;
};

// Codes that say "not on this kind of GPU" or "not for you", and nothing about the GPU's state.
bool is_harmless(nvml::Return code) {
  return code == nvml::kSuccess || code == nvml::kNotSupported || code == nvml::kNoPermission ||
         code == nvml::kNotFound || code == nvml::kFunctionNotFound || code == nvml::kNoData;
}

// Fills one Gpu from its handle, and remembers the first error as its health.
class Reader {
 public:
  Reader(const nvml::Api& api, nvml::Device device, Gpu& gpu) : api_(api), device_(device), gpu_(gpu) {}

  void identity() {
    char text[96] = {};
    if (check(api_.uuid(device_, text, sizeof(text)))) gpu_.uuid.value = text;
    if (gpu_.uuid.value.empty() && healthy()) gpu_.health = "has no UUID";
    if (api_.name && check(api_.name(device_, text, sizeof(text)))) gpu_.model = text;
    nvml::PciInfo pci{};
    if (api_.pci_info && check(api_.pci_info(device_, &pci))) {
      gpu_.pci.value = pci_text(api_.long_bus_id ? pci.bus_id : pci.bus_id_legacy);
    }
  }

  void properties(const std::string& sysfs_pci) {
    nvml::Memory memory{};
    if (api_.memory && check(api_.memory(device_, &memory))) {
      gpu_.memory_total_bytes = memory.total;
      gpu_.memory_free_bytes = memory.free;
    }
    int major = 0;
    int minor = 0;
    if (api_.compute_capability && check(api_.compute_capability(device_, &major, &minor))) {
      gpu_.compute_capability = cat(major, ".", minor);
    }
    std::ifstream file(cat(sysfs_pci, "/", gpu_.pci.value, "/numa_node"));
    int node = -1;
    if (file >> node && node >= 0) gpu_.numa_node = node;
    constexpr int kUncorrected = 1;
    constexpr int kSinceDriverLoad = 0;
    unsigned long long errors = 0;
    if (api_.total_ecc_errors &&
        check(api_.total_ecc_errors(device_, kUncorrected, kSinceDriverLoad, &errors)) && errors > 0 &&
        healthy()) {
      gpu_.health = cat(errors, " uncorrected ECC error", errors == 1 ? "" : "s", " since the driver loaded");
    }
  }

  void activity() {
    nvml::Utilization utilization{};
    if (api_.utilization && check(api_.utilization(device_, &utilization))) {
      gpu_.utilization_percent = static_cast<int>(utilization.gpu);
    }
    unsigned value = 0;
    constexpr int kGpuSensor = 0;
    if (api_.temperature && check(api_.temperature(device_, kGpuSensor, &value))) {
      gpu_.temperature_celsius = static_cast<int>(value);
    }
    if (api_.power_milliwatts && check(api_.power_milliwatts(device_, &value))) {
      gpu_.power_watts = value / 1000.0;
    }
    if (api_.processes) {
      read_processes<nvml::Process>(api_.processes);
    } else if (api_.processes_v1) {
      read_processes<nvml::ProcessV1>(api_.processes_v1);
    }
  }

 private:
  bool healthy() const { return gpu_.health == kHealthy; }

  bool check(nvml::Return code) {
    if (!is_harmless(code) && healthy()) gpu_.health = api_.text(code);
    return code == nvml::kSuccess;
  }

  // NVML writes "00000000:3B:00.0", Linux "0000:3b:00.0".
  static std::string pci_text(const std::string& bus_id) {
    const size_t colon = std::min(bus_id.find(':'), bus_id.size());
    size_t from = 0;
    while (colon - from > 4 && bus_id[from] == '0') ++from;
    std::string text = bus_id.substr(from);
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  }

  template <class Entry, class Function>
  void read_processes(Function list) {
    std::vector<Entry> entries(16);
    unsigned count = 0;
    nvml::Return code = nvml::kInsufficientSize;
    for (int attempt = 0; attempt < 5 && code == nvml::kInsufficientSize; ++attempt) {
      if (attempt > 0)
        entries.resize(std::max<size_t>(count, entries.size()) * 2);  // new ones may come between
      count = static_cast<unsigned>(entries.size());
      code = list(device_, &count, entries.data());
    }
    if (code == nvml::kInsufficientSize || !check(code)) return;
    for (size_t i = 0; i < count && i < entries.size(); ++i) {
      constexpr auto kNotAvailable = ~0ULL;
      gpu_.processes.push_back(
          {.pid = static_cast<int>(entries[i].pid),
           .used_memory_bytes = entries[i].used_memory == kNotAvailable ? 0 : entries[i].used_memory});
    }
  }

  const nvml::Api& api_;
  nvml::Device device_;
  Gpu& gpu_;
};

Gpu read_gpu(const nvml::Api& api, unsigned index, const NvmlOptions& options) {
  Gpu gpu;
  gpu.index.value = static_cast<int>(index);
  nvml::Device device = nullptr;
  if (const auto code = api.handle_by_index(index, &device); code != nvml::kSuccess) {
    gpu.health = api.text(code);
    return gpu;
  }
  Reader reader(api, device, gpu);
  reader.identity();
  reader.properties(options.sysfs_pci);
  if (options.detail == GpuDetail::full) reader.activity();
  return gpu;
}

NvmlReport read_all(const nvml::Api& api, const NvmlOptions& options) {
  NvmlReport report;
  const Session session(api);
  if (session.code() != nvml::kSuccess) {
    report.note = cat("the NVIDIA driver does not answer: ", api.text(session.code()));
    return report;
  }
  char version[96] = {};
  if (api.driver_version && api.driver_version(version, sizeof(version)) == nvml::kSuccess) {
    report.driver_version = version;
  }
  unsigned count = 0;
  if (const auto code = api.count(&count); code != nvml::kSuccess) {
    report.note = cat("the NVIDIA driver does not count its GPUs: ", api.text(code));
    return report;
  }
  for (unsigned i = 0; i < count; ++i) report.gpus.push_back(read_gpu(api, i, options));
  if (count == 0) report.note = cat("NVIDIA driver ", report.driver_version, " is loaded, but has no GPU");
  return report;
}

bool any_exists(const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(),
                     [](const std::string& path) { return access(path.c_str(), F_OK) == 0; });
}

}  // namespace

NvmlReport probe_nvml(const NvmlOptions& options) {
  std::string library = options.library;
  if (library.empty()) library = get_env("MUSTER_NVML_LIBRARY").value_or("");
  if (library.empty()) {
    if (!any_exists(options.driver_files)) {
      const std::string missing =
          options.driver_files.empty() ? "" : cat(" (no ", options.driver_files[0], ")");
      return {.gpus = {}, .driver_version = {}, .note = cat("no NVIDIA driver is loaded", missing)};
    }
    library = kDefaultLibrary;
  }
  const nvml::Api api(library);
  if (!api.usable()) return {.gpus = {}, .driver_version = {}, .note = cat("NVML: ", api.error())};
  return read_all(api, options);
}

}  // namespace muster
