// The file is a tree of objects. It is walked once from the top: objects with CPUs narrow the place
// of all that is below them, bridges extend the tree in which devices meet (device_tree.h), and
// cores and PCI devices are kept. Links and the order of devices come last, when all of them are
// known.
#include "muster/device/readers/hwloc_xml.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/device/cpu_list.h"
#include "muster/device/numbers.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/cpu_mask.h"
#include "muster/device/readers/gpu_models.h"
#include "muster/device/readers/hwloc_objects.h"

namespace muster {
namespace {

constexpr size_t kMaxThreads = 64;

// The place of an object, from the objects above it: filled in on the way down.
struct Place {
  size_t node = DeviceTree::kRoot;
  xml_node cpus{};  // the object whose cpuset it is
  std::optional<int> numa_node{};
  int socket = 0;
  std::optional<int> l3{};
};

struct PciType {  // "0302 [10de:1db8] [10de:131d] a1 00"
  uint32_t kind = 0;
  uint32_t vendor = 0;
  uint32_t device = 0;
};

PciType parse_pci_type(std::string_view text) {
  const auto hex = [&](size_t at) {
    return at + 4 <= text.size() ? parse_hex(text.substr(at, 4)).value_or(0) : 0;
  };
  return {hex(0), hex(6), hex(11)};
}

std::string_view info(xml_node object, const char* name) {
  return object.find_child_by_attribute("info", "name", name).attribute("value").value();
}

// Returns 7 for the name "nvml7" and the prefix "nvml".
std::optional<int> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix))
    return std::nullopt;
  return parse_number(name.substr(prefix.size()), 0, kMaxNumber);
}

// An accelerator of AMD says that it displays, in 3D or otherwise, or that it processes.
bool looks_like_gpu(const PciType& type) {
  constexpr uint32_t kDisplayClass = 0x03;
  constexpr uint32_t kAmdKinds[] = {0x0302, 0x0380, 0x1200};
  if (type.vendor == kPciVendorNvidia)
    return type.kind >> 8U == kDisplayClass;
  return type.vendor == kPciVendorAmd && contains(kAmdKinds, type.kind);
}

// Whether all of the devices have numbers, each another.
bool are_numbered(const HwlocDevices& devices) {
  IntSet numbers;
  return all_of(devices, [&](const HwlocDevice& device) {
    return device.number && numbers.insert(*device.number).second;
  });
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
    rdma_is_a_bit_ = number_before_text(file_.root().attribute("version").value()) >= 3;
    for (const xml_node machine : file_.root().children("object"))
      read_machine(machine);
    if (num_cpus_ == 0) {
      num_cpus_ = sum_of<int>(host_.cores, [](const CpuCore& core) { return int_size(core.cpus); });
    }
    if (num_cpus_ > 0)
      host_.num_cores = num_cpus_;
    order_gpus();
    host_.gpus = mapped(gpus_, &HwlocDevice::gpu);
    host_.nics = mapped(nics_, [](const HwlocDevice& device) {
      return Nic{.name = device.nic_name, .pci = device.gpu.pci, .numa_node = device.gpu.numa_node};
    });
    complete_host(host_, what_);
    link_devices();
    return std::move(host_);
  }

 private:
  void read_machine(xml_node machine) {
    read_nodes(machine);
    const auto name = clean_text(info(machine, "HostName"));
    if (!name.empty())
      host_.name = host_name_of(name + ".");
    if (const auto allowed = parse_cpu_mask(machine.attribute("allowed_cpuset").value()))
      num_cpus_ = int_size(*allowed);
    read_object(machine, {});
  }

  // A mask that cannot be read is an error: what hangs below it would have no place.
  Ints mask(xml_node object, const char* attribute) const {
    const char* const text = object.attribute(attribute).value();
    const auto bits = parse_cpu_mask(text);
    if (!bits)
      file_.fail(object, cat(attribute, "= a mask"), text);
    return *bits;
  }

  // The CPUs near a place are those of the nearest object above it that has any.
  Ints cpus_of(const Place& place) const {
    return place.cpus ? mask(place.cpus, "cpuset") : Ints();
  }

  // An object with CPUs narrows the place, and devices meet on its NUMA node or, where it spans
  // several, across.
  void narrow(xml_node object, Place& place) {
    place.cpus = object;
    place.numa_node.reset();
    if (object.attribute("nodeset"))
      place.numa_node = only_node(mask(object, "nodeset"));
    place.node = tree_.add(place.node, place.numa_node ? LinkKind::node : LinkKind::sys);
  }

  // Memory of other kinds, as a GPU's, is a node with the same CPUs as another, or with none: no
  // place of its own.
  void read_nodes(xml_node object) {  // NOLINT(misc-no-recursion)
    for (const xml_node child : object.children("object"))
      read_nodes(child);
    const auto number = file_.small_integer(object, "os_index", 0, INT32_MAX);
    if (std::string_view(object.attribute("type").value()) != "NUMANode" || !number)
      return;
    const std::string cpus = object.attribute("cpuset").value();
    if (parse_cpu_mask(cpus).value_or(Ints()).empty())
      return;
    int& first = first_node_.try_emplace(cpus, *number).first->second;
    first = std::min(first, *number);
    cpus_of_node_[*number] = cpus;
  }

  // Returns the one node that all of `nodes` are; nothing when they are several.
  std::optional<int> only_node(const Ints& nodes) const {
    std::optional<int> only;
    for (const int node : nodes) {
      const std::string* const cpus = value_at(cpus_of_node_, node);
      if (cpus == nullptr && nodes.size() > 1)
        continue;
      const int place = cpus == nullptr ? node : first_node_.at(*cpus);
      if (only && *only != place)
        return std::nullopt;
      only = place;
    }
    return only;
  }

  // Older versions of the format have one type for caches of all levels.
  bool is_third_level_cache(xml_node object) const {
    const std::string_view type = object.attribute("type").value();
    return type == "L3Cache" || (type == "Cache" && file_.integer(object, "depth", 0, 9) == 3);
  }

  // The recursion is as deep as XmlFile allows elements to nest.
  void read_object(xml_node object, Place place) {  // NOLINT(misc-no-recursion)
    const std::string_view type = object.attribute("type").value();
    if (object.attribute("cpuset"))
      narrow(object, place);
    if (is_one_of(type, "Package", "Socket")) {
      place.socket = num_sockets_++;
      place.l3.reset();
    } else if (is_third_level_cache(object)) {
      place.l3 = num_l3_++;
    } else if (is_one_of(type, "Core", "PU")) {
      read_core(object, place);
      return;
    } else if (type == "Bridge") {
      const bool host = std::string_view(object.attribute("bridge_type").value()).starts_with("0");
      place.node = tree_.add(place.node, host ? LinkKind::phb : LinkKind::pix);
    } else if (type == "PCIDev") {
      read_pci_device(object, place);
      return;
    }
    for (const xml_node child : object.children("object"))
      read_object(child, place);
  }

  // A file may leave cores out and hold threads alone; each then counts as a core.
  void read_core(xml_node object, const Place& place) {
    if (host_.cores.size() == kMaxHostCores)
      file_.fail(object, "fewer cores", "more");
    // Without a third level the cores of a socket share what there is.
    if (!place.l3 && socket_of_l3_ != place.socket) {
      shared_l3_ = num_l3_++;
      socket_of_l3_ = place.socket;
    }
    Ints cpus = cpus_of(place);
    if (cpus.size() > kMaxThreads)
      file_.fail(object, cat("at most ", kMaxThreads, " threads of a core"), "more");
    host_.cores.push_back({.cpus = std::move(cpus),
                           .numa_node = place.numa_node.value_or(0),
                           .socket = place.socket,
                           .l3 = place.l3.value_or(shared_l3_)});
  }

  // Only GPUs and NICs are kept; disks and the like are PCI devices too.
  void read_pci_device(xml_node object, const Place& place) {
    const PciType type = parse_pci_type(object.attribute("pci_type").value());
    HwlocDevice device{.place = tree_.add(place.node, LinkKind::pix)};
    device.gpu.pci = file_.pci_address(object, "pci_busid");
    device.gpu.numa_node = place.numa_node;
    note_number(object, device);
    bool managed = false;  // the vendor's library knows it
    for (const xml_node child : object.children("object"))
      managed |= read_os_device(child, device);
    if (managed || looks_like_gpu(type)) {
      device.gpu.near_cpus = to_cpu_list(cpus_of(place));
      describe_gpu(object, type, device.gpu);
      gpus_.push_back(std::move(device));
    } else if (!device.nic_name.empty()) {
      nics_.push_back(std::move(device));
    }
    if (gpus_.size() > kMaxHostDevices || nics_.size() > kMaxHostDevices) {
      file_.fail(object, cat("at most ", kMaxHostDevices, " GPUs and NICs"), "more");
    }
  }

  // Matrices of bandwidths name objects by these numbers.
  void note_number(xml_node object, HwlocDevice& device) const {
    if (const auto number = file_.integer(object, "gp_index", 0, INT64_MAX)) {
      device.object_numbers.push_back(*number);
    }
  }

  // The type of a device of the system is a number, or since version 3 a set of bits.
  bool is_rdma(xml_node object) const {
    const int type = file_.small_integer(object, "osdev_type", 0, INT32_MAX).value_or(0);
    return rdma_is_a_bit_ ? (type & 32) != 0 : type == 3;
  }

  // Reads what the system or a vendor's library calls the PCI device. Returns whether it is a GPU
  // of NVML, CUDA or ROCm SMI.
  bool read_os_device(xml_node object, HwlocDevice& device) const {
    note_number(object, device);
    const std::string_view name = object.attribute("name").value();
    if (is_rdma(object) && device.nic_name.empty())
      device.nic_name = clean_text(name);
    const auto nvml = number_after(name, "nvml");
    const auto number = nvml ? nvml : number_after(name, "rsmi");
    if (number)
      device.number = number;
    read_os_gpu(object, device.gpu);
    return number || number_after(name, "cuda");
  }

  static void read_os_gpu(xml_node object, Gpu& gpu) {
    gpu.model = text_or(clean_text(info(object, "GPUModel")), gpu.model);
    for (const char* const key : {"NVIDIAUUID", "AMDUUID"}) {
      const auto uuid = clean_text(info(object, key));
      if (!uuid.empty())
        gpu.uuid.value = uuid.starts_with("GPU-") ? uuid : "GPU-" + uuid;
    }
    for (const char* const key : {"CUDAGlobalMemorySize", "RSMIVRAMSize"}) {
      const int64_t kib = parse_int(info(object, key)).value_or(0);
      if (kib > 0 && kib < INT64_C(1) << 40)
        gpu.memory_total_bytes = kib * 1024;
    }
  }

  // What the file says of a GPU goes before what is known of its model.
  static void describe_gpu(xml_node object, const PciType& type, Gpu& gpu) {
    const Gpu told = gpu;
    const GpuModel* model = find_gpu_model_by_pci_id(type.vendor, type.device);
    if (model == nullptr)
      model = find_gpu_model_by_product(gpu.model);
    if (model != nullptr)
      apply_model(gpu, *model);
    if (type.vendor == kPciVendorAmd)
      gpu.vendor = Vendor::amd;
    gpu.model = text_or(told.model, gpu.model);
    if (told.memory_total_bytes > 0)
      gpu.memory_total_bytes = told.memory_total_bytes;
    gpu.memory_free_bytes = gpu.memory_total_bytes;
    if (model == nullptr)
      read_slot(object, gpu);
  }

  // The speed is what the link carried at that moment, in GB/s after encoding. Idle devices lower
  // it, so it is believed only where it is that of 16 lanes of generation 3 or more.
  static void read_slot(xml_node object, Gpu& gpu) {
    const double speed = number_before_text(object.attribute("pci_link_speed").value());
    for (int generation = 3; generation <= 5; ++generation) {
      const double full = 16 * 8.0 / 8 * 128 / 130 * (1 << (generation - 3));
      if (std::abs(speed - full) > 0.02 * full)
        continue;
      gpu.pcie_generation = generation;
      gpu.pcie_width = 16;
    }
  }

  // Numbers of NVML or ROCm are indices that users know; without them the order is that of PCI.
  void order_gpus() {
    if (are_numbered(gpus_)) {
      std::ranges::stable_sort(gpus_, {}, &HwlocDevice::number);
      for (HwlocDevice& device : gpus_)
        device.gpu.index.value = *device.number;
      return;
    }
    std::ranges::stable_sort(gpus_, {}, [](const HwlocDevice& device) { return device.gpu.pci; });
    int next = 0;
    for (HwlocDevice& device : gpus_)
      device.gpu.index.value = next++;
  }

  void link_devices() {
    host_.gpu_links = hwloc_gpu_links(file_, tree_, gpus_);
    if (nics_.empty())
      return;
    host_.nic_links =
        tree_.links(mapped(gpus_, &HwlocDevice::place), mapped(nics_, &HwlocDevice::place));
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
  int shared_l3_ = 0;
  int socket_of_l3_ = -1;  // which shares it; -1: none yet
  int num_cpus_ = 0;
  HwlocDevices gpus_;
  HwlocDevices nics_;
  Host host_;
};

}  // namespace

Host hwloc_xml_host(const std::string& text, const std::string& source) {
  return HwlocReader(text, source).read();
}

}  // namespace muster
