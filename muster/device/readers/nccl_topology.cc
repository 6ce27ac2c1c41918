// The file holds one <cpu> for each NUMA node, and below it the PCI devices as they hang on
// bridges. Those of one host are read together; links need all GPUs of a host, so they come last.
#include "muster/device/readers/nccl_topology.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/device/cpu_list.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/cpu_mask.h"
#include "muster/device/readers/device_tree.h"
#include "muster/device/readers/gpu_models.h"
#include "muster/device/readers/xml_file.h"

namespace muster {
namespace {

// PCI classes. Source: PCI Code and ID Assignment Specification.
constexpr uint32_t kDisplay = 0x03;
constexpr uint32_t kNetwork = 0x02;
constexpr uint32_t kProcessing = 0x12;  // what newer AMD accelerators call themselves
constexpr uint32_t kNvswitch = 0x0680;

constexpr size_t kMaxDumpedHosts = 1024;
constexpr int kMaxLinksOfGpu = 1024;

struct FoundGpu {
  size_t place = 0;  // in the tree
  Gpu gpu{};
  std::map<std::string, int> links{};  // to other GPUs, by PCI address
  int switch_links = 0;                // to NVSwitches
  LinkKind link_kind = LinkKind::nvlink;
  std::optional<int> dev{};  // the number that CUDA gave it
  xml_node node{};
};

struct FoundNic {
  size_t place = 0;
  Nic nic{};
};

// Returns "gfx90a" for "gfx90a:sramecc+:xnack-"; older ROCm wrote a number.
std::string gfx_target(std::string_view text) {
  const auto target = clean_text(text.substr(0, text.find(':')));
  if (target == "910")
    return "gfx90a";
  return target.empty() || target.starts_with("gfx") ? target : cat("gfx", target);
}

// Reads one host: some of the <cpu> of a file.
class NcclReader {
 public:
  NcclReader(const XmlFile& file, const std::string& what, const std::string& name)
      : what_(what), file_(file) {
    host_.name = name;
  }

  Host read(const std::vector<xml_node>& cpus) {
    for (const xml_node cpu : cpus)
      read_cpu(cpu);
    if (num_cpus_ > 0)
      host_.num_cores = num_cpus_;
    check_one_host(cpus);
    order_gpus();
    host_.gpus = mapped(gpus_, &FoundGpu::gpu);
    host_.nics = mapped(nics_, &FoundNic::nic);
    complete_host(host_, what_);
    link_devices();
    return std::move(host_);
  }

 private:
  // An attribute that is missing counts as 0, which is no vendor, device or class.
  uint32_t hex(xml_node node, const char* attribute) const {
    std::string_view text = trim(node.attribute(attribute).value());
    if (text.starts_with("0x"))
      text.remove_prefix(2);
    const auto value = text.empty() ? 0 : parse_hex(text);
    if (!value)
      file_.fail(node, cat(attribute, "= a hexadecimal number"), text);
    return *value;
  }

  // Where the topologies of two hosts stand side by side, PCI addresses or NUMA nodes are there
  // twice.
  void check_one_host(const std::vector<xml_node>& cpus) const {
    StringSet seen;
    const auto look = [&](xml_node at, const std::string& thing) {
      if (seen.insert(thing).second)
        return;
      file_.fail(at,
                 "the topology of one host (of several, a file each in a folder)",
                 cat(thing, " twice"));
    };
    for (const FoundGpu& found : gpus_)
      look(found.node, cat("PCI address ", found.gpu.pci.value));
    if (!devs_repeat())
      return;
    for (const xml_node cpu : cpus)
      look(cpu, cat("NUMA node ", cpu.attribute("numaid").value()));
  }

  // A number comes twice where each process sees one GPU, which is its device 0.
  bool devs_repeat() const {
    IntSet devs;
    return any_of(
        gpus_, [&](const FoundGpu& found) { return found.dev && !devs.insert(*found.dev).second; });
  }

  // Everything below a <cpu> is near to its NUMA node and its CPUs.
  void read_cpu(xml_node cpu) {
    numa_node_ = file_.small_integer(cpu, "numaid", -1, kMaxNumber);
    if (numa_node_ == -1)
      numa_node_.reset();
    const char* const mask = cpu.attribute("affinity").value();
    near_cpus_.clear();
    if (*mask != '\0') {
      const auto cpus = parse_cpu_mask(mask);
      if (!cpus)
        file_.fail(cpu, "affinity= a mask of CPUs", mask);
      num_cpus_ += int_size(*cpus);
      near_cpus_ = to_cpu_list(*cpus);
    }
    read_devices(cpu, tree_.add(DeviceTree::kRoot, LinkKind::phb));
  }

  // The recursion is as deep as XmlFile allows elements to nest.
  void read_devices(xml_node above, size_t place) {  // NOLINT(misc-no-recursion)
    for (const xml_node pci : above.children("pci")) {
      const size_t own = tree_.add(place, LinkKind::pix);
      const uint32_t kind = hex(pci, "class") >> 16U;
      const bool gpu = pci.child("gpu") || is_one_of(kind, kDisplay, kProcessing);
      if (gpu) {
        read_gpu(pci, own);
      } else if (pci.child("nic") || kind == kNetwork) {
        read_nics(pci, own);
      }
      read_devices(pci, own);
    }
    if (std::string_view(above.name()) == "cpu")
      read_nics(above, place);  // NICs with no PCI device of their own
  }

  // The PCI device says which model it is; its <gpu>, where there is one, says the rest.
  void read_gpu(xml_node pci, size_t place) {
    file_.check_room(gpus_, kMaxHostDevices, "GPUs", pci);
    FoundGpu found{.place = place, .node = pci};
    Gpu& gpu = found.gpu;
    const uint32_t vendor = hex(pci, "vendor");
    if (const GpuModel* const model = find_gpu_model_by_pci_id(vendor, hex(pci, "device"))) {
      apply_model(gpu, *model);
    }
    if (vendor == kPciVendorAmd)
      gpu.vendor = Vendor::amd;
    gpu.pci = file_.pci_address(pci, "busid");
    gpu.numa_node = numa_node_;
    gpu.near_cpus = near_cpus_;
    read_slot(pci, gpu);
    const xml_node detail = pci.child("gpu");
    has_details_ |= !detail.empty();
    found.dev = file_.small_integer(detail, "dev", 0, kMaxNumber);
    read_target(detail, gpu);
    for (const xml_node link : detail.children("nvlink"))
      read_link(link, found);
    for (const xml_node link : detail.children("xgmi")) {
      found.link_kind = LinkKind::xgmi;
      gpu.vendor = Vendor::amd;
      read_link(link, found);
    }
    gpus_.push_back(std::move(found));
  }

  // AMD's GPUs have a target ("gcn"), NVIDIA's a compute capability ("sm").
  void read_target(xml_node detail, Gpu& gpu) const {
    if (detail.attribute("gcn")) {
      gpu.vendor = Vendor::amd;
      gpu.compute_capability = gfx_target(detail.attribute("gcn").value());
    }
    const auto sm = file_.integer(detail, "sm", 10, 9999);
    if (sm && gpu.vendor == Vendor::nvidia)
      gpu.compute_capability = cat(*sm / 10, ".", *sm % 10);
  }

  // Reads "16 GT/s", "32.0 GT/s PCIe": each generation doubles. Source: PCI-SIG.
  void read_slot(xml_node pci, Gpu& gpu) const {
    if (const auto generation = pcie_generation(pci.attribute("link_speed").value()))
      gpu.pcie_generation = generation;
    const int width = file_.small_integer(pci, "link_width", 0, 64).value_or(0);
    if (width > 0)
      gpu.pcie_width = width;
  }

  void read_link(xml_node link, FoundGpu& found) const {
    const int count = file_.small_integer(link, "count", 1, kMaxLinksOfGpu).value_or(1);
    if (hex(link, "tclass") >> 8U == kNvswitch) {
      found.switch_links = std::min(found.switch_links + count, kMaxLinksOfGpu);
      return;
    }
    // A CPU with NVLink has another kind of address, and is passed over.
    if (const auto target = parse_pci_address(link.attribute("target").value())) {
      int& sum = found.links[target->value];
      sum = std::min(sum + count, kMaxLinksOfGpu);
    }
  }

  // A card may have several ports, each a <net> of its own; one without any counts once.
  void read_nics(xml_node above, size_t place) {
    bool named = false;
    for (const xml_node nic : above.children("nic")) {
      for (const xml_node net : nic.children("net")) {
        named = true;
        add_nic(above, clean_text(net.attribute("name").value()), place);
      }
    }
    if (!named && std::string_view(above.name()) == "pci")
      add_nic(above, "", place);
  }

  // A card without a name goes by its address.
  void add_nic(xml_node at, const std::string& name, size_t place) {
    file_.check_room(nics_, kMaxHostDevices, "NICs", at);
    FoundNic found{.place = place};
    if (at.attribute("busid"))
      found.nic.pci = file_.pci_address(at, "busid");
    found.nic.name = text_or(name, found.nic.pci.value);
    found.nic.numa_node = numa_node_;
    nics_.push_back(std::move(found));
  }

  // Indices are the numbers that the file gives, where all GPUs have one of their own.
  void order_gpus() {
    const bool repeat = devs_repeat();
    if (repeat) {
      host_.notes.emplace_back(
          "several GPUs have one device number, as where each process sees one GPU: they are "
          "numbered by their PCI addresses");
    }
    if (!has_details_ && gpus_.size() > 1) {
      host_.notes.emplace_back(
          "a topology for NCCL_TOPO_FILE, which has no NVLinks: NCCL_TOPO_DUMP_FILE writes one "
          "that has them");
    }
    std::ranges::sort(gpus_, {}, [](const FoundGpu& found) { return found.gpu.pci; });
    const bool all_told =
        all_of(gpus_, [](const FoundGpu& found) { return found.dev.has_value(); });
    const bool by_dev = all_told && !repeat;
    if (by_dev)
      std::ranges::sort(gpus_, {}, &FoundGpu::dev);
    int next = 0;
    for (FoundGpu& found : gpus_) {
      found.gpu.index.value = by_dev ? *found.dev : next;
      ++next;
    }
  }

  // A link that only one end tells of is there too; where both do, the smaller number counts.
  Link link(const FoundGpu& a, const FoundGpu& b) const {
    const int there = find_or(a.links, b.gpu.pci.value);
    const int back = find_or(b.links, a.gpu.pci.value, there);
    if (there > 0)
      return {a.link_kind, std::min(there, back)};
    if (back > 0)
      return {b.link_kind, back};
    const int through = std::min(a.switch_links, b.switch_links);
    if (through > 0)
      return {LinkKind::nvlink, through};
    return {tree_.link(a.place, b.place), 0};
  }

  // Without NICs there is no matrix of links to them.
  void link_devices() {
    host_.gpu_links = unknown_links(gpus_.size());
    for (const size_t i : indices_of(gpus_)) {
      for (const size_t j : indices_of(gpus_)) {
        if (i != j)
          host_.gpu_links[i][j] = link(gpus_[i], gpus_[j]);
      }
    }
    if (nics_.empty())
      return;
    host_.nic_links = tree_.links(mapped(gpus_, &FoundGpu::place), mapped(nics_, &FoundNic::place));
  }

  const std::string& what_;
  const XmlFile& file_;
  DeviceTree tree_{1};
  bool has_details_ = false;      // what NCCL itself knows of GPUs, NVLinks among them
  std::optional<int> numa_node_;  // of the CPU that is being read
  std::string near_cpus_;
  int num_cpus_ = 0;
  std::vector<FoundGpu> gpus_;
  std::vector<FoundNic> nics_;
  Host host_;
};

// Returns the <cpu> of each host, by NCCL's hash of the host, which dumps of one host may lack.
// There is one host at least.
std::vector<std::vector<xml_node>> cpus_by_host(const XmlFile& file) {
  std::vector<std::vector<xml_node>> hosts(1);
  std::map<std::string, size_t> by_hash;
  for (const xml_node cpu : file.root().children("cpu")) {
    const auto [found, is_new] =
        by_hash.emplace(cpu.attribute("host_hash").value(), by_hash.size());
    if (is_new && found->second == kMaxDumpedHosts)
      file.fail(cpu, cat("at most ", kMaxDumpedHosts, " hosts"), "more");
    hosts.resize(std::max(hosts.size(), by_hash.size()));
    hosts[found->second].push_back(cpu);
  }
  return hosts;
}

}  // namespace

// Several hosts are numbered, since the file has only hashes of their names.
std::vector<Host> nccl_topology_hosts(const std::string& text, const std::string& source) {
  const auto what = cat("inventory ", source);
  const XmlFile file(text, what);
  file.check_root("system");
  const auto name = host_name_of(source);
  const auto groups = cpus_by_host(file);
  std::vector<Host> hosts;
  for (const std::vector<xml_node>& cpus : groups) {
    const std::string own = groups.size() > 1 ? cat(name, "-", hosts.size()) : name;
    hosts.push_back(NcclReader(file, what, own).read(cpus));
  }
  return hosts;
}

}  // namespace muster
