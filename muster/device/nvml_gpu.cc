// A function of NVML may be missing in this driver, may not be for this kind of GPU, or may fail
// because the GPU is broken. Only the last is an error of the GPU, and it becomes its health;
// whatever was not told stays unknown.
#include "muster/device/nvml_gpu.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
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

  // Every GPU that works has a UUID; without one it could not be given to a rank.
  void identity() {
    char text[96] = {};
    if (ask(api_.uuid, text, sizeof(text)))
      gpu_.uuid.value = text;
    if (gpu_.uuid.value.empty())
      mark_sick("has no UUID");
    if (ask(api_.name, text, sizeof(text)))
      gpu_.model = text;
    PciInfo pci{};
    if (ask(api_.pci_info, &pci)) {
      gpu_.pci.value = linux_pci_address(api_.long_bus_id ? pci.bus_id : pci.bus_id_legacy);
    }
  }

  void properties() {
    Memory memory{};
    if (ask(api_.memory, &memory)) {
      gpu_.memory_total_bytes = memory.total;
      gpu_.memory_free_bytes = memory.free;
    }
    int major = 0;
    int minor = 0;
    if (ask(api_.compute_capability, &major, &minor)) {
      gpu_.compute_capability = cat(major, ".", minor);
    }
    gpu_.pcie_generation = number(api_.max_pcie_generation);
    gpu_.pcie_width = number(api_.max_pcie_width);
    C2cMode c2c{};
    gpu_.c2c = glance_at(api_.c2c_mode, &c2c) && c2c.is_enabled == 1;
  }

  // The kernel knows best; NVML's own list is for where sysfs is not mounted.
  void locality(const std::string& sysroot) {
    const PciPlace place = find_pci_place(sysroot, gpu_.pci);
    gpu_.numa_node = place.numa_node;
    gpu_.near_cpus = place.near_cpus.empty() ? cpus_by_nvml() : place.near_cpus;
  }

  // An error that could not be corrected has spoilt data, and more will come, so the GPU is left
  // out.
  void ecc() {
    constexpr int kUncorrected = 1;
    constexpr int kSinceDriverLoad = 0;
    unsigned long long errors = 0;
    if (!ask(api_.total_ecc_errors, kUncorrected, kSinceDriverLoad, &errors))
      return;
    gpu_.ecc_uncorrected_errors = errors;
    if (errors > 0)
      mark_sick(cat(plural(errors, "uncorrected ECC error"), " since the driver loaded"));
  }

  // GPUs before Ampere retire pages, newer ones remap rows. Either needs a reset to take effect.
  void repairs() {
    int retiring = 0;
    if (glance_at(api_.retired_pages_pending, &retiring))
      gpu_.repair_pending = retiring == 1;
    unsigned corrected = 0, uncorrected = 0, remapping = 0, failed = 0;
    if (!glance_at(api_.remapped_rows, &corrected, &uncorrected, &remapping, &failed))
      return;
    if (remapping != 0 || failed != 0)
      gpu_.repair_pending = true;
  }

  // In MIG mode work runs on instances only, so a GPU without one is of no use.
  void mig() {
    unsigned current = 0;
    unsigned pending = 0;
    if (!glance_at(api_.mig_mode, &current, &pending))
      return;
    gpu_.mig_enabled = current == 1;
    if (!gpu_.mig_enabled)
      return;
    unsigned most = 0;
    if (api_.mig_device)
      glance_at(api_.max_mig_devices, &most);
    for (unsigned i = 0; i < most; ++i)
      add_instance(i);
    if (gpu_.mig.empty())
      mark_sick("MIG mode is on, but it has no instance (nvidia-smi mig -cgi … -C makes some)");
  }

  // These values change all the time and are only shown.
  void activity() {
    Utilization utilization{};
    if (glance_at(api_.utilization, &utilization))
      gpu_.utilization_percent = utilization.gpu;
    unsigned degrees = 0;
    constexpr int kGpuSensor = 0;
    if (glance_at(api_.temperature, kGpuSensor, &degrees))
      gpu_.temperature_celsius = degrees;
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
  // The first thing that is wrong is what the user is told.
  void mark_sick(const std::string& problem) {
    if (gpu_.health == kHealthy)
      gpu_.health = problem;
  }

  bool check(Return code) {
    if (!is_harmless(code))
      mark_sick(api_.text(code));
    return code == kSuccess;
  }

  // For what a GPU can work without: only an error that is about the GPU itself counts.
  bool glance(Return code) {
    const bool is_about_gpu = is_one_of(code, kGpuIsLost, kResetRequired);
    return is_about_gpu ? check(code) : code == kSuccess;
  }

  // These two call a function of NVML for this GPU; false when the driver lacks it or it fails.
  template <class Function, class... Arguments>
  bool ask(Function function, Arguments... arguments) {
    return function && check(function(device_, arguments...));
  }
  template <class Function, class... Arguments>
  bool glance_at(Function function, Arguments... arguments) {
    return function && glance(function(device_, arguments...));
  }

  // The same for what says nothing of the GPU when it fails, such as an instance's name.
  template <class Function, class... Arguments>
  static bool tells(Function function, Arguments... arguments) {
    return function && function(arguments...) == kSuccess;
  }

  std::optional<int> number(Return (*function)(Device, unsigned*)) {
    unsigned value = 0;
    if (!glance_at(function, &value) || value > INT_MAX)
      return std::nullopt;
    return value;
  }

  // The driver's list of near CPUs, for systems whose sysfs has none.
  std::string cpus_by_nvml() {
    constexpr int kWords = 64;
    constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
    unsigned long words[kWords] = {};
    if (!tells(api_.cpu_affinity, device_, kWords, words))
      return "";
    return to_cpu_list(filtered_indices(
        kWords * kBits, [&](int cpu) { return (words[cpu / kBits] >> (cpu % kBits) & 1) != 0; }));
  }

  // Most numbers below the maximum have no instance, which is no error.
  void add_instance(unsigned index) {
    Device device = nullptr;
    if (!glance(api_.mig_device(device_, index, &device)))
      return;
    char text[96] = {};
    if (!glance(api_.uuid(device, text, sizeof(text))))
      return;
    MigInstance instance{.uuid = {text}};
    Memory memory{};
    if (tells(api_.memory, device, &memory))
      instance.memory_total_bytes = memory.total;
    Attributes attributes{};
    const bool known = tells(api_.attributes, device, &attributes);
    if (known && instance.memory_total_bytes == 0)
      instance.memory_total_bytes = attributes.memory_mib * kMiB;
    if (tells(api_.name, device, text, sizeof(text)))
      instance.profile = profile_in(text);
    if (instance.profile.empty() && known)
      instance.profile = profile_of(attributes);
    gpu_.mig.push_back(std::move(instance));
  }

  // Returns "1g.5gb" for "NVIDIA A100-SXM4-40GB MIG 1g.5gb"; older drivers name the whole GPU only.
  static std::string profile_in(std::string_view name) {
    constexpr std::string_view kMark = " MIG ";
    const size_t at = name.find(kMark);
    return at == npos ? "" : std::string(name.substr(at + kMark.size()));
  }

  // The name is put together from what NVML says of the instance's size.
  std::string profile_of(const Attributes& attributes) const {
    return mig_profile_name(attributes.compute_slices,
                            attributes.gpu_slices,
                            attributes.memory_mib * kMiB,
                            gpu_.memory_total_bytes);
  }

  // NVML says how much room the list needs, but new processes may come before it is asked again.
  template <class Entry, class Function>
  void read_processes(Function list) {
    std::vector<Entry> entries(16);
    unsigned count = entries.size();
    Return code = list(device_, &count, entries.data());
    for (int again = 0; again < 4 && code == kInsufficientSize; ++again) {
      entries.resize(std::max<size_t>(count, entries.size()) * 2);
      count = entries.size();
      code = list(device_, &count, entries.data());
    }
    if (!glance(code))
      return;
    entries.resize(std::min<size_t>(count, entries.size()));
    for (const Entry& entry : entries) {
      constexpr auto kNotAvailable = ~0ULL;
      const uint64_t bytes = entry.used_memory == kNotAvailable ? 0 : entry.used_memory;
      gpu_.processes.push_back({.pid = static_cast<int>(entry.pid), .used_memory_bytes = bytes});
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
