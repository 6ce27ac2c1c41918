#include "muster/device/nvml_gpu.h"

#include <algorithm>
#include <array>
#include <climits>

#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/mig_profile.h"
#include "muster/device/pci_tree.h"

namespace muster::nvml {
namespace {

constexpr uint64_t kMiB = 1ULL << 20;

// Fills one Gpu from its handle, and remembers the first error as its health.
class Reader {
 public:
  Reader(const Api& api, Device device, Gpu& gpu) : api_(api), device_(device), gpu_(gpu) {}

  void identity() {
    char text[96] = {};
    if (check(api_.uuid(device_, text, sizeof(text))))
      gpu_.uuid.value = text;
    if (gpu_.uuid.value.empty() && healthy())
      gpu_.health = "has no UUID";
    if (api_.name && check(api_.name(device_, text, sizeof(text))))
      gpu_.model = text;
    PciInfo pci{};
    if (api_.pci_info && check(api_.pci_info(device_, &pci))) {
      gpu_.pci.value = linux_pci_address(api_.long_bus_id ? pci.bus_id : pci.bus_id_legacy);
    }
  }

  void properties() {
    Memory memory{};
    if (api_.memory && check(api_.memory(device_, &memory))) {
      gpu_.memory_total_bytes = memory.total;
      gpu_.memory_free_bytes = memory.free;
    }
    int major = 0;
    int minor = 0;
    if (api_.compute_capability && check(api_.compute_capability(device_, &major, &minor))) {
      gpu_.compute_capability = cat(major, ".", minor);
    }
    gpu_.pcie_generation = number(api_.max_pcie_generation);
    gpu_.pcie_width = number(api_.max_pcie_width);
  }

  void locality(const std::string& sysroot) {
    const PciPlace place = find_pci_place(sysroot, gpu_.pci);
    gpu_.numa_node = place.numa_node;
    gpu_.near_cpus = place.near_cpus.empty() ? cpus_by_nvml() : place.near_cpus;
  }

  void ecc() {
    constexpr int kUncorrected = 1;
    constexpr int kSinceDriverLoad = 0;
    unsigned long long errors = 0;
    if (!api_.total_ecc_errors ||
        !check(api_.total_ecc_errors(device_, kUncorrected, kSinceDriverLoad, &errors))) {
      return;
    }
    gpu_.ecc_uncorrected_errors = errors;
    if (errors > 0 && healthy()) {
      gpu_.health = cat(plural(errors, "uncorrected ECC error"), " since the driver loaded");
    }
  }

  void repairs() {
    int retiring = 0;
    unsigned corrected = 0, uncorrected = 0, remapping = 0, failed = 0;
    if (api_.retired_pages_pending && glance(api_.retired_pages_pending(device_, &retiring)))
      gpu_.repair_pending = retiring == 1;
    if (api_.remapped_rows &&
        glance(api_.remapped_rows(device_, &corrected, &uncorrected, &remapping, &failed)))
      gpu_.repair_pending = gpu_.repair_pending || remapping != 0 || failed != 0;
  }

  void mig() {
    unsigned current = 0;
    unsigned pending = 0;
    if (!api_.mig_mode || !glance(api_.mig_mode(device_, &current, &pending)))
      return;
    gpu_.mig_enabled = current == 1;
    if (!gpu_.mig_enabled)
      return;
    unsigned most = 0;
    if (api_.max_mig_devices && api_.mig_device && glance(api_.max_mig_devices(device_, &most))) {
      for (unsigned i = 0; i < most; ++i)
        add_instance(i);
    }
    if (gpu_.mig.empty() && healthy()) {
      gpu_.health = "MIG mode is on, but it has no instance (nvidia-smi mig -cgi … -C makes some)";
    }
  }

  void activity() {
    Utilization utilization{};
    if (api_.utilization && glance(api_.utilization(device_, &utilization))) {
      gpu_.utilization_percent = static_cast<int>(utilization.gpu);
    }
    unsigned value = 0;
    constexpr int kGpuSensor = 0;
    if (api_.temperature && glance(api_.temperature(device_, kGpuSensor, &value))) {
      gpu_.temperature_celsius = static_cast<int>(value);
    }
    if (const auto milliwatts = number(api_.power_milliwatts))
      gpu_.power_watts = *milliwatts / 1000.0;
    if (const auto limit = number(api_.power_limit_milliwatts))
      gpu_.power_limit_watts = *limit / 1000.0;
  }

  void processes() {
    if (api_.processes) {
      read_processes<Process>(api_.processes);
    } else if (api_.processes_v1) {
      read_processes<ProcessV1>(api_.processes_v1);
    }
  }

 private:
  bool healthy() const { return gpu_.health == kHealthy; }

  bool check(Return code) {
    if (!is_harmless(code) && healthy())
      gpu_.health = api_.text(code);
    return code == kSuccess;
  }

  // For what a GPU can work without: only an error that is about the GPU itself counts.
  bool glance(Return code) {
    return code == kGpuIsLost || code == kResetRequired ? check(code) : code == kSuccess;
  }

  std::optional<int> number(Return (*function)(Device, unsigned*)) {
    unsigned value = 0;
    if (!function || !glance(function(device_, &value)) || value > INT_MAX)
      return std::nullopt;
    return static_cast<int>(value);
  }

  std::string cpus_by_nvml() {
    constexpr unsigned kBits = sizeof(unsigned long) * CHAR_BIT;
    std::array<unsigned long, 64> words{};
    if (!api_.cpu_affinity || api_.cpu_affinity(device_, words.size(), words.data()) != kSuccess)
      return "";
    std::vector<int> cpus;
    for (unsigned cpu = 0; cpu < words.size() * kBits; ++cpu) {
      if ((words[cpu / kBits] >> (cpu % kBits)) & 1)
        cpus.push_back(static_cast<int>(cpu));
    }
    return to_cpu_list(std::move(cpus));
  }

  void add_instance(unsigned index) {
    Device device = nullptr;
    const Return code = api_.mig_device(device_, index, &device);
    if (!glance(code))
      return;  // most numbers have no instance
    MigInstance instance;
    char text[96] = {};
    if (!glance(api_.uuid(device, text, sizeof(text))))
      return;
    instance.uuid.value = text;
    Memory memory{};
    if (api_.memory && api_.memory(device, &memory) == kSuccess)
      instance.memory_total_bytes = memory.total;
    Attributes attributes{};
    const bool known = api_.attributes && api_.attributes(device, &attributes) == kSuccess;
    if (known && instance.memory_total_bytes == 0)
      instance.memory_total_bytes = attributes.memory_mib * kMiB;
    if (api_.name && api_.name(device, text, sizeof(text)) == kSuccess)
      instance.profile = profile_in(text);
    if (instance.profile.empty() && known)
      instance.profile = profile_of(attributes);
    gpu_.mig.push_back(std::move(instance));
  }

  // "NVIDIA A100-SXM4-40GB MIG 1g.5gb" → "1g.5gb"; older drivers name the whole GPU only.
  static std::string profile_in(std::string_view name) {
    constexpr std::string_view kMark = " MIG ";
    const size_t at = name.find(kMark);
    return at == std::string_view::npos ? "" : std::string(name.substr(at + kMark.size()));
  }

  std::string profile_of(const Attributes& attributes) const {
    return mig_profile_name(static_cast<int>(attributes.compute_slices),
                            static_cast<int>(attributes.gpu_slices),
                            attributes.memory_mib * kMiB,
                            gpu_.memory_total_bytes);
  }

  template <class Entry, class Function>
  void read_processes(Function list) {
    std::vector<Entry> entries(16);
    unsigned count = 0;
    Return code = kInsufficientSize;
    for (int attempt = 0; attempt < 5 && code == kInsufficientSize; ++attempt) {
      if (attempt > 0)
        entries.resize(std::max<size_t>(count, entries.size()) * 2);  // new ones may come between
      count = static_cast<unsigned>(entries.size());
      code = list(device_, &count, entries.data());
    }
    if (code == kInsufficientSize || !glance(code))
      return;
    for (size_t i = 0; i < count && i < entries.size(); ++i) {
      constexpr auto kNotAvailable = ~0ULL;
      gpu_.processes.push_back({.pid = static_cast<int>(entries[i].pid),
                                .used_memory_bytes = entries[i].used_memory == kNotAvailable
                                                         ? 0
                                                         : entries[i].used_memory});
    }
  }

  const Api& api_;
  Device device_;
  Gpu& gpu_;
};

}  // namespace

Gpu read_gpu(const Api& api, Device device, GpuDetail detail, const std::string& sysroot) {
  Gpu gpu;
  Reader reader(api, device, gpu);
  reader.identity();
  reader.properties();
  reader.locality(sysroot);
  reader.ecc();
  reader.repairs();
  reader.mig();
  if (detail != GpuDetail::placement)
    reader.processes();
  if (detail == GpuDetail::full)
    reader.activity();
  return gpu;
}

}  // namespace muster::nvml
