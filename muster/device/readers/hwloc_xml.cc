#include "muster/device/readers/hwloc_xml.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/cpu_mask.h"
#include "muster/device/readers/gpu_models.h"
#include "muster/device/readers/hwloc_objects.h"

namespace muster {
namespace {

constexpr size_t kMaxThreads = 64;

// What an object is below: filled in on the way down.
struct Place {
  size_t node = DeviceTree::kRoot;
  pugi::xml_node cpus = {};  // the object whose cpuset it is
  std::optional<int> numa_node = {};
  int socket = 0;
  std::optional<int> l3 = {};
};

struct PciType {  // "0302 [10de:1db8] [10de:131d] a1 00"
  uint32_t kind = 0;
  uint32_t vendor = 0;
  uint32_t device = 0;
};

PciType parse_pci_type(std::string_view text) {
  const auto hex = [&](size_t at) {
    uint32_t value = 0;
    if (at + 4 <= text.size())
      std::from_chars(text.data() + at, text.data() + at + 4, value, 16);
    return value;
  };
  return {hex(0), hex(6), hex(11)};
}

std::string_view info(pugi::xml_node object, const char* name) {
  return object.find_child_by_attribute("info", "name", name).attribute("value").value();
}

// 7 of "nvml7" for "nvml".
std::optional<int> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix))
    return std::nullopt;
  const auto number = parse_int(name.substr(prefix.size()));
  if (!number || *number < 0 || *number > 65535)
    return std::nullopt;
  return static_cast<int>(*number);
}

class HwlocReader {
 public:
  HwlocReader(const std::string& text, const std::string& source)
      : what_(cat("inventory ", source)), file_(text, what_) {
    host_.name = host_name_of(source);
  }

  Host read() {
    if (std::string_view(file_.root().name()) != "topology" || !file_.root().child("object")) {
      file_.fail(file_.root(), "<topology> with an <object>", cat("<", file_.root().name(), ">"));
    }
    const double version = std::strtod(file_.root().attribute("version").value(), nullptr);
    rdma_is_a_bit_ = version >= 3;
    for (const pugi::xml_node machine : file_.root().children("object")) {
      read_nodes(machine);
      const std::string name = clean_text(info(machine, "HostName"));
      if (!name.empty())
        host_.name = host_name_of(name + ".");
      if (const auto allowed = parse_cpu_mask(machine.attribute("allowed_cpuset").value())) {
        num_cpus_ = allowed->size();
      }
      read_object(machine, {});
    }
    if (num_cpus_ == 0) {
      for (const CpuCore& core : host_.cores)
        num_cpus_ += core.cpus.size();
    }
    if (num_cpus_ > 0)
      host_.num_cores = static_cast<int>(num_cpus_);
    finish_devices();
    return std::move(host_);
  }

 private:
  std::vector<int> mask(pugi::xml_node object, const char* attribute) const {
    const char* const text = object.attribute(attribute).value();
    const auto bits = parse_cpu_mask(text);
    if (!bits)
      file_.fail(object, cat(attribute, "= a mask"), text);
    return *bits;
  }

  std::vector<int> cpus_of(const Place& place) const {
    return place.cpus ? mask(place.cpus, "cpuset") : std::vector<int>();
  }

  // An object with CPUs narrows the place, and devices meet on its NUMA node or, where it spans
  // several, across.
  void narrow(pugi::xml_node object, Place& place) {
    place.cpus = object;
    place.numa_node.reset();
    if (object.attribute("nodeset"))
      place.numa_node = only_node(mask(object, "nodeset"));
    place.node = tree_.add(place.node, place.numa_node ? LinkKind::node : LinkKind::sys);
  }

  // Memory of other kinds, as a GPU's, is a node with the same CPUs as another, or with none: no
  // place of its own.
  void read_nodes(pugi::xml_node object) {  // NOLINT(misc-no-recursion)
    for (const pugi::xml_node child : object.children("object"))
      read_nodes(child);
    const auto number = file_.integer(object, "os_index", 0, INT32_MAX);
    if (std::string_view(object.attribute("type").value()) != "NUMANode" || !number)
      return;
    const std::string cpus = object.attribute("cpuset").value();
    const auto bits = parse_cpu_mask(cpus);
    if (!bits || bits->empty())
      return;
    const auto [first, is_new] = first_node_.try_emplace(cpus, static_cast<int>(*number));
    if (!is_new)
      first->second = std::min(first->second, static_cast<int>(*number));
    cpus_of_node_[static_cast<int>(*number)] = cpus;
  }

  // The one place that all of `nodes` are; nothing when they are several.
  std::optional<int> only_node(const std::vector<int>& nodes) const {
    std::optional<int> only;
    for (const int node : nodes) {
      const auto cpus = cpus_of_node_.find(node);
      if (cpus == cpus_of_node_.end() && nodes.size() > 1)
        continue;
      const int place = cpus == cpus_of_node_.end() ? node : first_node_.at(cpus->second);
      if (only && *only != place)
        return std::nullopt;
      only = place;
    }
    return only;
  }

  // Nested as deep as XmlFile allows at most.
  void read_object(pugi::xml_node object, Place place) {  // NOLINT(misc-no-recursion)
    const std::string_view type = object.attribute("type").value();
    if (object.attribute("cpuset"))
      narrow(object, place);
    if (type == "Package" || type == "Socket") {
      place.socket = num_sockets_++;
      place.l3.reset();
    } else if (type == "L3Cache" ||
               (type == "Cache" && file_.integer(object, "depth", 0, 9) == 3)) {
      place.l3 = num_l3_++;
    } else if (type == "Core" || type == "PU") {
      read_core(object, place);
      return;
    } else if (type == "Bridge") {
      const bool host = std::string_view(object.attribute("bridge_type").value()).starts_with("0");
      place.node = tree_.add(place.node, host ? LinkKind::phb : LinkKind::pix);
    } else if (type == "PCIDev") {
      read_pci_device(object, place);
      return;
    }
    for (const pugi::xml_node child : object.children("object"))
      read_object(child, place);
  }

  void read_core(pugi::xml_node object, const Place& place) {
    if (host_.cores.size() == kMaxHostCores)
      file_.fail(object, "fewer cores", "more");
    // Without a third level the cores of a socket share what there is.
    if (!place.l3 && (socket_of_l3_ != place.socket || !shared_l3_)) {
      shared_l3_ = num_l3_++;
      socket_of_l3_ = place.socket;
    }
    std::vector<int> cpus = cpus_of(place);
    if (cpus.size() > kMaxThreads)
      file_.fail(object, cat("at most ", kMaxThreads, " threads of a core"), "more");
    host_.cores.push_back({.cpus = std::move(cpus),
                           .numa_node = place.numa_node.value_or(0),
                           .socket = place.socket,
                           .l3 = place.l3 ? *place.l3 : *shared_l3_});
  }

  void read_pci_device(pugi::xml_node object, const Place& place) {
    const PciType type = parse_pci_type(object.attribute("pci_type").value());
    HwlocDevice device{.place = tree_.add(place.node, LinkKind::pix)};
    const char* const address = object.attribute("pci_busid").value();
    const auto pci = parse_pci_address(address);
    if (!pci)
      file_.fail(object, "pci_busid= a PCI address", address);
    device.gpu.pci = *pci;
    device.gpu.numa_node = place.numa_node;
    note_number(object, device);
    bool managed = false;  // the vendor's library knows it
    for (const pugi::xml_node child : object.children("object")) {
      managed = read_os_device(child, device) || managed;
    }
    const bool display = type.kind >> 8U == 0x03;
    const bool nvidia = type.vendor == kPciVendorNvidia && display;
    const bool amd = type.vendor == kPciVendorAmd &&
                     (type.kind == 0x0302 || type.kind == 0x0380 || type.kind == 0x1200);
    if (managed || nvidia || amd) {
      device.gpu.near_cpus = to_cpu_list(cpus_of(place));
      describe_gpu(object, type, device);
      gpus_.push_back(std::move(device));
    } else if (!device.nic_name.empty()) {
      nics_.push_back(std::move(device));
    }
    if (gpus_.size() > kMaxHostDevices || nics_.size() > kMaxHostDevices) {
      file_.fail(object, cat("at most ", kMaxHostDevices, " GPUs and NICs"), "more");
    }
  }

  void note_number(pugi::xml_node object, HwlocDevice& device) const {
    if (const auto number = file_.integer(object, "gp_index", 0, INT64_MAX)) {
      device.object_numbers.push_back(*number);
    }
  }

  // Whether it is a GPU of NVML, CUDA or ROCm SMI.
  bool read_os_device(pugi::xml_node object, HwlocDevice& device) const {
    note_number(object, device);
    const std::string_view name = object.attribute("name").value();
    const auto kind = file_.integer(object, "osdev_type", 0, INT32_MAX).value_or(0);
    const bool rdma = rdma_is_a_bit_ ? (kind & 32) != 0 : kind == 3;
    if (rdma && device.nic_name.empty())
      device.nic_name = clean_text(name);
    const auto nvml = number_after(name, "nvml");
    const auto rsmi = number_after(name, "rsmi");
    if (nvml || rsmi)
      device.number = nvml ? nvml : rsmi;
    Gpu& gpu = device.gpu;
    if (!info(object, "GPUModel").empty())
      gpu.model = clean_text(info(object, "GPUModel"));
    for (const char* const key : {"NVIDIAUUID", "AMDUUID"}) {
      const std::string uuid = clean_text(info(object, key));
      if (!uuid.empty())
        gpu.uuid.value = uuid.starts_with("GPU-") ? uuid : "GPU-" + uuid;
    }
    for (const char* const key : {"CUDAGlobalMemorySize", "RSMIVRAMSize"}) {
      const auto kib = parse_int(info(object, key));
      if (kib && *kib > 0 && *kib < INT64_C(1) << 40)
        gpu.memory_total_bytes = static_cast<uint64_t>(*kib) << 10U;
    }
    return nvml || rsmi || number_after(name, "cuda");
  }

  void describe_gpu(pugi::xml_node object, const PciType& type, HwlocDevice& device) const {
    Gpu& gpu = device.gpu;
    const Gpu told = gpu;
    const GpuModel* model = find_gpu_model_by_pci_id(type.vendor, type.device);
    if (model == nullptr)
      model = find_gpu_model_by_product(gpu.model);
    if (model != nullptr)
      apply_model(gpu, *model);
    if (type.vendor == kPciVendorAmd)
      gpu.vendor = Vendor::amd;
    if (!told.model.empty())
      gpu.model = told.model;
    if (told.memory_total_bytes > 0)
      gpu.memory_total_bytes = told.memory_total_bytes;
    gpu.memory_free_bytes = gpu.memory_total_bytes;
    // What the link carried at that moment, which idle devices lower: taken where nothing better is
    // known and it is that of 16 lanes of generation 3 or more. In GB/s, after encoding.
    const double speed = std::strtod(object.attribute("pci_link_speed").value(), nullptr);
    for (int generation = 3; model == nullptr && generation <= 5; ++generation) {
      const double full = 16 * 8.0 / 8 * 128 / 130 * (1 << (generation - 3));
      if (std::abs(speed - full) > 0.02 * full)
        continue;
      gpu.pcie_generation = generation;
      gpu.pcie_width = 16;
    }
  }

  void finish_devices() {
    bool numbered = true;
    std::vector<int> numbers;
    for (const HwlocDevice& device : gpus_) {
      numbered = numbered && device.number &&
                 std::find(numbers.begin(), numbers.end(), *device.number) == numbers.end();
      numbers.push_back(device.number.value_or(-1));
    }
    std::stable_sort(gpus_.begin(), gpus_.end(), [&](const HwlocDevice& a, const HwlocDevice& b) {
      return numbered ? *a.number < *b.number : a.gpu.pci.value < b.gpu.pci.value;
    });
    for (size_t i = 0; i < gpus_.size(); ++i) {
      gpus_[i].gpu.index.value = numbered ? *gpus_[i].number : static_cast<int>(i);
      host_.gpus.push_back(gpus_[i].gpu);
    }
    for (const HwlocDevice& device : nics_) {
      host_.nics.push_back(
          {.name = device.nic_name, .pci = device.gpu.pci, .numa_node = device.gpu.numa_node});
    }
    complete_host(host_, what_);
    host_.gpu_links = hwloc_gpu_links(file_, tree_, gpus_);
    if (nics_.empty())
      return;
    host_.nic_links = unknown_links(gpus_.size(), nics_.size(), false);
    for (size_t i = 0; i < gpus_.size(); ++i) {
      for (size_t k = 0; k < nics_.size(); ++k) {
        host_.nic_links[i][k].kind = tree_.link(gpus_[i].place, nics_[k].place);
      }
    }
  }

  std::string what_;
  XmlFile file_;
  DeviceTree tree_{2};  // a device hangs on a port, and that on the switch's upper port
  std::map<int, std::string>
      cpus_of_node_;                       // of NUMA nodes that have CPUs, as the file writes them
  std::map<std::string, int> first_node_;  // with those CPUs
  bool rdma_is_a_bit_ = false;
  int num_sockets_ = 0;
  int num_l3_ = 0;
  std::optional<int> shared_l3_;
  int socket_of_l3_ = 0;
  size_t num_cpus_ = 0;
  std::vector<HwlocDevice> gpus_;
  std::vector<HwlocDevice> nics_;
  Host host_;
};

}  // namespace

Host hwloc_xml_host(const std::string& text, const std::string& source) {
  return HwlocReader(text, source).read();
}

}  // namespace muster
