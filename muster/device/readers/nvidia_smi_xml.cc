// Each fact of a GPU is one element, and its place and name differ from one version of nvidia-smi
// to the next. A number must have the unit that is expected; "N/A" and the like leave a fact
// unknown.
#include "muster/device/readers/nvidia_smi_xml.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "muster/device/mig_profile.h"
#include "muster/device/numbers.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/gpu_models.h"
#include "muster/device/readers/xml_file.h"

namespace muster {
namespace {

// Larger numbers are mistakes of the file.
constexpr int kMaxMib = 1 << 30;
constexpr int kMaxPid = 1 << 30;
constexpr int kMaxInstance = 1000;
constexpr int kMaxProcessors = 10'000;  // of a MIG device

// nvidia-smi writes one of these instead of a value when the GPU does not answer.
constexpr const char* kBroken[] = {"GPU is lost", "Unknown Error", "ERR!", "GPU requires reset"};

// Reads one <gpu>.
class GpuReader {
 public:
  GpuReader(const XmlFile& file, xml_node node) : file_(file), node_(node) {}

  Gpu read(int index) {
    gpu_.index.value = index;
    read_identity();
    read_health();
    read_memory();
    read_sensors();
    read_pcie();
    read_ecc();
    read_mig();
    read_processes();
    return std::move(gpu_);
  }

 private:
  // `path` is like "pci/pci_bus", below this GPU.
  xml_node at(const char* path) const { return node_.first_element_by_path(path); }
  std::string text(const char* path) const { return clean_text(at(path).text().get()); }

  // Returns the number with its unit ("81920 MiB") at the first of `places` that holds one.
  std::optional<double> number(std::initializer_list<const char*> places,
                               std::string_view unit,
                               double most) const {
    for (const char* const path : places) {
      if (const auto value = number(at(path), unit, most))
        return value;
    }
    return std::nullopt;
  }

  // A text that begins with no digit, as "N/A", is no value.
  std::optional<double> number(xml_node node, std::string_view unit, double most) const {
    const std::string_view text = trim(node.text().get());
    if (text.empty() || text.front() < '0' || text.front() > '9')
      return std::nullopt;
    double value = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    const bool has_unit = trim(std::string_view(end, last)) == unit;
    if (error != std::errc() || !has_unit || !(value <= most)) {
      file_.fail(node, cat("a number up to ", most, unit.empty() ? "" : " in ", unit), text);
    }
    return value;
  }

  std::optional<int> integer(xml_node node, std::string_view unit, int most) const {
    const auto value = number(node, unit, most);
    if (!value)
      return std::nullopt;
    return static_cast<int>(*value);
  }

  // The bytes of a memory that nvidia-smi writes in whole MiB; a value that is missing counts as 0.
  uint64_t bytes(xml_node node) const {
    return uint64_t(integer(node, "MiB", kMaxMib).value_or(0)) << 20U;
  }

  void read_identity() {
    gpu_.model = text("product_name");
    gpu_.uuid.value = text("uuid");
    gpu_.compute_capability = compute_capability_of(gpu_.model);
    gpu_.pci = file_.pci_address(node_, "id");
  }

  // A GPU that does not answer is kept with what nvidia-smi says, and has no UUID.
  void read_health() {
    for (const char* const path : {"product_name", "uuid", "fb_memory_usage/total"}) {
      for (const char* const broken : kBroken) {
        if (has_text(text(path), broken))
          gpu_.health = broken;
      }
    }
    if (text("gpu_reset_status/reset_required") == "Yes")
      gpu_.health = "GPU requires reset";
    if (text("remapped_rows/remapped_row_failure") == "Yes")
      gpu_.health = "row remapping failed";
    const std::string action = text("gpu_recovery_action");
    if (!action.empty() && !is_one_of(action, "None", "N/A"))
      gpu_.health = cat("needs recovery: ", action);
    if (gpu_.uuid.value.starts_with("GPU-"))
      return;
    if (gpu_.health == kHealthy)
      file_.fail(node_, "uuid GPU-…", gpu_.uuid.value);
    gpu_.uuid.value.clear();
  }

  void read_memory() {
    gpu_.memory_total_bytes = bytes(at("fb_memory_usage/total"));
    gpu_.memory_free_bytes = std::min(bytes(at("fb_memory_usage/free")), gpu_.memory_total_bytes);
  }

  // Sensors changed their names with the versions; the newest name is tried first.
  void read_sensors() {
    gpu_.utilization_percent = integer(at("utilization/gpu_util"), "%", 100);
    gpu_.temperature_celsius = integer(at("temperature/gpu_temp"), "C", 1000);
    gpu_.power_watts = number({"gpu_power_readings/power_draw",
                               "gpu_power_readings/instant_power_draw",
                               "gpu_power_readings/average_power_draw",
                               "power_readings/power_draw"},
                              "W",
                              1e6);
    gpu_.power_limit_watts =
        number({"gpu_power_readings/current_power_limit", "power_readings/power_limit"}, "W", 1e6);
  }

  void read_pcie() {
    gpu_.pcie_generation = known(at("pci/pci_gpu_link_info/pcie_gen/max_link_gen"), "", 16);
    gpu_.pcie_width = known(at("pci/pci_gpu_link_info/link_widths/max_link_width"), "x", 64);
  }

  // 0 stands for a number that the driver does not know.
  std::optional<int> known(xml_node node, std::string_view unit, int most) const {
    const auto value = integer(node, unit, most);
    return value == 0 ? std::nullopt : value;
  }

  // The names changed twice; the parts of the newer ones add up.
  void read_ecc() {
    const xml_node errors = at("ecc_errors/volatile");
    std::optional<double> sum;
    const auto add = [&](const char* path) {
      if (const auto count = number(errors.first_element_by_path(path), "", 1e15))
        sum = sum.value_or(0) + *count;
    };
    for (const char* const path : {"dram_uncorrectable",
                                   "sram_uncorrectable",
                                   "sram_uncorrectable_parity",
                                   "sram_uncorrectable_secded"}) {
      add(path);
    }
    if (!sum)
      add("double_bit/total");
    if (sum)
      gpu_.ecc_uncorrected_errors = static_cast<uint64_t>(*sum);
  }

  void read_mig() {
    gpu_.mig_enabled = text("mig_mode/current_mig") == "Enabled";
    const auto devices = node_.child("mig_devices").children("mig_device");
    std::map<std::string, int> sharers;  // compute instances of each GPU instance
    for (const xml_node device : devices)
      ++sharers[gpu_instance_of(device)];
    for (const xml_node device : devices) {
      file_.check_room(gpu_.mig, kMaxHostDevices, "MIG devices", device);
      gpu_.mig.push_back(mig_instance(device, sharers[gpu_instance_of(device)] == 1));
    }
  }

  static const char* gpu_instance_of(xml_node device) {
    return device.child("gpu_instance_id").text().get();
  }

  // CUDA takes this name too, for an instance that has no UUID.
  std::string name_by_numbers(xml_node device) const {
    const auto gpu_instance = integer(device.child("gpu_instance_id"), "", kMaxInstance);
    const auto compute_instance = integer(device.child("compute_instance_id"), "", kMaxInstance);
    if (!gpu_instance || !compute_instance)
      file_.fail(device, "gpu_instance_id and compute_instance_id", "none");
    return cat("MIG-", gpu_.uuid.value, "/", *gpu_instance, "/", *compute_instance);
  }

  // `whole`: no other compute instance shares the part of the GPU.
  MigInstance mig_instance(xml_node device, bool whole) const {
    MigInstance instance;
    instance.uuid.value = clean_text(device.child("uuid").text().get());
    if (!instance.uuid.value.starts_with("MIG-"))
      instance.uuid.value = name_by_numbers(device);
    instance.memory_total_bytes = bytes(device.first_element_by_path("fb_memory_usage/total"));
    const auto processors =
        integer(device.first_element_by_path("device_attributes/shared/multiprocessor_count"),
                "",
                kMaxProcessors);
    if (whole && processors)
      instance.profile = profile(*processors, instance.memory_total_bytes);
    return instance;
  }

  // Returns how many multiprocessors are a seventh of this GPU; 0 where that is not known. Source:
  // NVIDIA MIG User Guide, "Supported MIG Profiles" (14 of an A100, 16 of an H100, fewer of an
  // H20).
  int seventh_of_gpu() const {
    const std::string architecture = text("product_architecture");
    if (architecture == "Ampere")
      return 14;
    const bool is_hopper = architecture == "Hopper" && gpu_.model != "NVIDIA H20";
    return is_hopper ? 16 : 0;
  }

  // Returns "2g.20gb": sevenths of the GPU's multiprocessors, and memory.
  std::string profile(int processors, uint64_t memory) const {
    const int seventh = seventh_of_gpu();
    if (seventh == 0)
      return {};
    const int slices = std::clamp(processors / seventh, 1, 7);
    return mig_profile_name(slices, slices, memory, gpu_.memory_total_bytes);
  }

  // Only processes that compute count; "G" alone is a desktop.
  void read_processes() {
    for (const xml_node process : node_.child("processes").children("process_info")) {
      const std::string_view type = process.child("type").text().get();
      if (!contains(type, 'C'))
        continue;
      const auto pid = known(process.child("pid"), "", kMaxPid);
      if (!pid)
        file_.fail(process, "a pid", process.child("pid").text().get());
      gpu_.processes.push_back(
          {.pid = *pid, .used_memory_bytes = bytes(process.child("used_memory"))});
    }
  }

  const XmlFile& file_;
  xml_node node_;
  Gpu gpu_;
};

// nvidia-smi says how many GPUs there are also where it tells of some of them alone.
void note_left_out_gpus(const XmlFile& file, Host& host) {
  const auto attached = parse_int(file.root().child("attached_gpus").text().get());
  if (attached && std::cmp_greater(*attached, host.gpus.size())) {
    host.notes.push_back(cat("the file has ",
                             host.gpus.size(),
                             " of ",
                             *attached,
                             " attached GPUs (nvidia-smi -i leaves others out)"));
  }
}

}  // namespace

Host nvidia_smi_xml_host(const std::string& text, const std::string& source) {
  const auto what = cat("inventory ", source);
  const XmlFile file(text, what);
  file.check_root("nvidia_smi_log");
  Host host{.name = host_name_of(source)};
  host.driver_version = clean_text(file.root().child("driver_version").text().get());
  for (const xml_node node : file.root().children("gpu")) {
    file.check_room(host.gpus, kMaxHostDevices, "GPUs", node);
    host.gpus.push_back(GpuReader(file, node).read(int_size(host.gpus)));
  }
  note_left_out_gpus(file, host);
  complete_host(host, what);
  return host;
}

}  // namespace muster
