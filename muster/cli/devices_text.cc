// A host is a table of its GPUs, a table of the links between them with a legend, and a line about
// its CPU. Names from drivers and files are made printable.
#include "muster/cli/devices_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/device/cpu_list.h"
#include "muster/device/links.h"
#include "muster/draw/text_table.h"

namespace muster {
namespace {

using Row = Strings;

template <class T>
std::string or_dash(const std::optional<T>& value, const char* unit = "") {
  return value ? cat(*value, unit) : "-";
}

std::string or_dash(const std::string& text) {
  return text_or(text, "-");
}

// A GPU that shares the host's memory tells none of its own.
std::string memory_text(const Gpu& gpu) {
  if (gpu.memory_total_bytes == 0)
    return "-";
  return cat(format_bytes(gpu.memory_used_bytes()), " / ", format_bytes(gpu.memory_total_bytes));
}

// A GPU may tell its use, its limit, both or none.
std::string power_text(const Gpu& gpu) {
  if (!gpu.power_watts && !gpu.power_limit_watts)
    return "-";
  const auto used = gpu.power_watts ? cat(std::lround(*gpu.power_watts)) : "-";
  return cat(
      used, gpu.power_limit_watts ? cat(" / ", std::lround(*gpu.power_limit_watts)) : "", " W");
}

std::string processes_text(const Gpu& gpu) {
  // A GPU that many processes share would make the table too wide.
  constexpr size_t kMaxShown = 4;
  auto pids = mapped(gpu.processes, [](const auto& process) { return cat(process.pid); });
  return or_dash(join_first(std::move(pids), " ", kMaxShown));
}

// The cells follow the columns of gpu_table().
Row gpu_row(const Gpu& gpu) {
  return {cat(gpu.index.value),
          or_dash(gpu.uuid.value),
          or_dash(gpu.pci.value),
          or_dash(gpu.model),
          memory_text(gpu),
          or_dash(gpu.utilization_percent, " %"),
          or_dash(gpu.temperature_celsius, " C"),
          power_text(gpu),
          or_dash(gpu.ecc_uncorrected_errors),
          or_dash(gpu.compute_capability),
          or_dash(gpu.numa_node),
          or_dash(gpu.near_cpus),
          gpu.health,
          processes_text(gpu)};
}

// A MIG instance stands below its GPU, with its own UUID, profile and memory.
Row instance_row(const MigInstance& instance, size_t num_columns) {
  Row row(num_columns);
  row[1] = "  " + or_dash(instance.uuid.value);
  row[3] = cat("  MIG ", or_dash(instance.profile));
  row[4] = instance.memory_total_bytes == 0 ? "-" : format_bytes(instance.memory_total_bytes);
  return row;
}

// The column of leases is there only if leases could be read.
std::string gpu_table(const std::vector<Gpu>& gpus, const DevicesTextOptions& options) {
  TableColumns columns = {{"GPU", true},
                          {"UUID"},
                          {"PCI"},
                          {"model"},
                          {"memory used / total", true},
                          {"util", true},
                          {"temp", true},
                          {"power", true},
                          {"ECC", true},
                          {"cc", true},
                          {"NUMA", true},
                          {"near CPUs"},
                          {"health"},
                          {"processes"}};
  const size_t num_columns = columns.size();
  if (options.leases)
    columns.push_back({"leased by"});
  std::vector<Row> rows;
  const auto add = [&](Row row, const GpuUuid& uuid) {
    if (options.leases)
      row.push_back(find_or(options.holders, uuid.value, "-"));
    rows.push_back(std::move(row));
  };
  for (const Gpu& gpu : gpus) {
    add(gpu_row(gpu), gpu.uuid);
    for (const MigInstance& instance : gpu.mig)
      add(instance_row(instance, num_columns), instance.uuid);
  }
  return format_table(columns, rows);
}

// What the legend says of each kind of link.
constexpr std::pair<LinkKind, const char*> kMeanings[] = {
    {LinkKind::self, "the device itself"},
    {LinkKind::nvlink, "NVLinks, as many as the number says, straight or through switches"},
    {LinkKind::xgmi, "Infinity Fabric links, as many as the number says"},
    {LinkKind::pix, "at most one PCIe switch between them"},
    {LinkKind::pxb, "several PCIe switches"},
    {LinkKind::phb, "through a PCIe host bridge (the CPU)"},
    {LinkKind::node, "through several host bridges of one NUMA node"},
    {LinkKind::sys, "across NUMA nodes"}};

// Explains the kinds of links that the table has.
std::string legend(const std::set<LinkKind>& kinds) {
  std::string text;
  for (const LinkKind kind : kinds) {
    std::string name = to_string(Link{.kind = kind});
    if (kind == LinkKind::nvlink)
      name = "NV#";
    if (kind == LinkKind::xgmi)
      name = "XGMI#";
    name.resize(std::max<size_t>(name.size(), 5), ' ');
    text += cat("  ", name, " ", lookup(kMeanings, kind, "not known"), "\n");
  }
  return text;
}

// A table of GPU by GPU, then GPU by network card, as `nvidia-smi topo -m` shows it.
std::string link_table(const Host& host) {
  if (host.gpu_links.size() != host.gpus.size() || host.gpus.empty())
    return "";
  const bool with_nics = host.nic_links.size() == host.gpus.size();
  if (host.gpus.size() < 2 && !with_nics)
    return "";
  TableColumns columns = {{""}};
  for (const Gpu& gpu : host.gpus)
    columns.push_back({cat("GPU", gpu.index.value)});
  for (size_t k = 0; k < host.nics.size() && with_nics; ++k)
    columns.push_back({cat("NIC", k)});
  std::set<LinkKind> kinds;
  std::vector<Row> rows;
  for (const size_t i : indices_of(host.gpus)) {
    auto links = host.gpu_links[i];
    if (with_nics)
      append_all(links, host.nic_links[i]);
    Row row = {cat("GPU", host.gpus[i].index.value)};
    for (const Link& link : links) {
      row.push_back(to_string(link));
      kinds.insert(link.kind);
    }
    row.resize(columns.size());
    rows.push_back(std::move(row));
  }
  std::string text = "\nlinks\n" + format_table(columns, rows);
  // The head has the cards' numbers alone; these lines have their names.
  for (size_t k = 0; k < host.nics.size() && with_nics; ++k) {
    text += cat("  NIC",
                k,
                " ",
                printable(host.nics[k].name),
                " ",
                printable(host.nics[k].pci.value),
                "\n");
  }
  return text + legend(kinds) + "\n";
}

// Tells which GPUs NVLink-C2C joins to a CPU. Such a GPU may have no memory of its own, or tell
// none.
std::string c2c_text(const Host& host) {
  Strings joined, without_memory;
  for (const Gpu& gpu : host.gpus) {
    if (gpu.c2c)
      joined.push_back(cat("GPU ", gpu.index.value));
    if (gpu.c2c && gpu.memory_total_bytes == 0)
      without_memory.push_back(joined.back());
  }
  if (joined.empty())
    return "";
  const std::string shared =
      without_memory.empty()
          ? ""
          : cat("; ", join(without_memory, ", "), " told no memory but the machine's");
  return cat("C2C: NVLink-C2C joins ",
             join(joined, ", "),
             joined.size() > 1 ? ", each to its CPU" : " to its CPU",
             ": both reach all of their memory",
             shared,
             "\n");
}

// Slots are muster's own; cores, sockets and NUMA nodes are the machine's, as far as it tells them.
std::string cpu_text(const Host& host) {
  auto text = cat("CPU: ",
                  plural(host.num_cores, "core"),
                  ", ",
                  plural(host.cpu_slots, "slot"),
                  " (ranks started where no GPU is used; MUSTER_CPU_SLOTS changes it)\n");
  if (host.cores.empty())
    return text;
  IntSet sockets;
  std::map<int, Ints> nodes;
  size_t num_threads = 0;
  for (const CpuCore& core : host.cores) {
    sockets.insert(core.socket);
    num_threads += core.cpus.size();
    append_all(nodes[core.numa_node], core.cpus);
  }
  text += cat("     ",
              plural(host.cores.size(), "physical core"),
              " with ",
              plural(num_threads, "thread"),
              " on ",
              plural(sockets.size(), "socket"));
  for (const auto& [node, cpus] : nodes)
    text += cat("; NUMA node ", node, ": CPUs ", to_cpu_list(cpus));
  return text + "\n";
}

// A host has the driver of one vendor.
std::string driver_text(const Host& host) {
  if (host.driver_version.empty())
    return "";
  const auto is_amd = [](const Gpu& gpu) {
    return gpu.vendor == Vendor::amd;
  };
  const bool amd = !host.gpus.empty() && all_of(host.gpus, is_amd);
  return cat(amd ? ", amdgpu driver " : ", NVIDIA driver ", printable(host.driver_version));
}

// A host without a GPU says why.
std::string host_text(const Host& host, const DevicesTextOptions& options) {
  auto text = cat("host ", printable(host.name), driver_text(host), "\n");
  if (host.gpus.empty()) {
    text += cat("no GPU: ", printable(or_dash(host.gpu_note)), "\n");
  } else {
    text += gpu_table(host.gpus, options) + link_table(host) + c2c_text(host);
  }
  text += cpu_text(host);
  text += sum_of<std::string>(
      host.notes, [&](const auto& note) { return cat("note: ", printable(note), "\n"); });
  return text;
}

}  // namespace

std::string devices_text(const Inventory& inventory, const DevicesTextOptions& options) {
  std::string text;
  if (inventory.simulated)
    text += cat("from ", printable(inventory.source), ", not this machine\n");
  for (const Host& host : inventory.hosts)
    text += (text.empty() ? "" : "\n") + host_text(host, options);
  return text;
}

}  // namespace muster
