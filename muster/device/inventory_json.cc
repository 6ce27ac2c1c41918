// All that is written stands first, all that is read follows in the same order. Both know every
// member: one that only the writer has would be an error when its own output is read back.
#include "muster/device/inventory_json.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/links.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/strict_json.h"

namespace muster {
namespace {

constexpr auto kSchema = "muster.devices/1";

constexpr auto kNvidia = "nvidia";
constexpr auto kAmd = "amd";

using Json = nlohmann::ordered_json;

// Null where a device has not told how much memory it has, which is a total of 0.
Json told_bytes(uint64_t bytes, uint64_t total) {
  return total == 0 ? Json() : Json(bytes);
}

// Members stand in the order in which people look for them, identity first.
Json to_json(const Gpu& gpu) {
  Json processes = Json::array();
  for (const GpuProcess& process : gpu.processes) {
    processes.push_back({{"pid", process.pid}, {"used_memory_bytes", process.used_memory_bytes}});
  }
  Json mig = Json::array();
  for (const MigInstance& instance : gpu.mig) {
    mig.push_back({{"uuid", instance.uuid.value},
                   {"profile", instance.profile},
                   {"memory_total_bytes",
                    told_bytes(instance.memory_total_bytes, instance.memory_total_bytes)}});
  }
  return {{"index", gpu.index.value},
          {"uuid", gpu.uuid.value},
          {"pci", gpu.pci.value},
          {"vendor", gpu.vendor == Vendor::amd ? kAmd : kNvidia},
          {"model", gpu.model},
          {"memory_total_bytes", told_bytes(gpu.memory_total_bytes, gpu.memory_total_bytes)},
          {"memory_free_bytes", told_bytes(gpu.memory_free_bytes, gpu.memory_total_bytes)},
          {"c2c", gpu.c2c},
          {"utilization_percent", or_null(gpu.utilization_percent)},
          {"temperature_celsius", or_null(gpu.temperature_celsius)},
          {"power_watts", or_null(gpu.power_watts)},
          {"power_limit_watts", or_null(gpu.power_limit_watts)},
          {"ecc_uncorrected_errors", or_null(gpu.ecc_uncorrected_errors)},
          {"repair_pending", gpu.repair_pending},
          {"compute_capability", gpu.compute_capability},
          {"pcie_generation", or_null(gpu.pcie_generation)},
          {"pcie_width", or_null(gpu.pcie_width)},
          {"numa_node", or_null(gpu.numa_node)},
          {"near_cpus", gpu.near_cpus},
          {"mig_enabled", gpu.mig_enabled},
          {"mig", std::move(mig)},
          {"health", gpu.health},
          {"processes", std::move(processes)}};
}

Json to_json(const Nic& nic) {
  return {{"name", nic.name}, {"pci", nic.pci.value}, {"numa_node", or_null(nic.numa_node)}};
}

// A row of links is one text, "X NV18 SYS", so that people can read the matrix.
Json to_json(const LinkMatrix& links) {
  Json rows = Json::array();
  for (const std::vector<Link>& row : links) {
    const auto texts = mapped(row, [](const Link& link) { return to_string(link); });
    rows.push_back(join(texts, " "));
  }
  return rows;
}

bool stand_together(const CpuCore& a, const CpuCore& b) {
  return a.numa_node == b.numa_node && a.socket == b.socket && a.l3 == b.l3;
}

// Neighbouring cores with the same place share an object, in which each core is one text.
Json to_json(const CpuCores& cores) {
  Json groups = Json::array();
  for (size_t i = 0; i < cores.size();) {
    const CpuCore& first = cores[i];
    Json cpus = Json::array();
    for (; i < cores.size() && stand_together(cores[i], first); ++i)
      cpus.push_back(to_cpu_list(cores[i].cpus));
    groups.push_back({{"numa_node", first.numa_node},
                      {"socket", first.socket},
                      {"l3", first.l3},
                      {"cores", std::move(cpus)}});
  }
  return groups;
}

// Notes came later and are written only where there are some, so that the text of most machines has
// not changed.
Json to_json(const Host& host) {
  const auto gpus = mapped(host.gpus, [](const Gpu& gpu) { return to_json(gpu); });
  const auto nics = mapped(host.nics, [](const Nic& nic) { return to_json(nic); });
  Json json = {{"name", host.name},
               {"num_cores", host.num_cores},
               {"cpu_slots", host.cpu_slots},
               {"driver_version", host.driver_version},
               {"gpu_note", host.gpu_note},
               {"gpus_expected", host.gpus_expected},
               {"gpus", std::move(gpus)},
               {"nics", std::move(nics)},
               {"gpu_links", to_json(host.gpu_links)},
               {"nic_links", to_json(host.nic_links)},
               {"cores", to_json(host.cores)}};
  add_unless_default(json, "notes", host.notes);
  return json;
}

// Shows a wrong text in errors, cut where it is long.
std::string beginning_in_quotes(const std::string& text) {
  return in_quotes(text.substr(0, kMaxShown));
}

// The CPUs of a member's text. Throws: invalid_argument that names the member.
Ints cpus_from(const JsonObject& object, const char* key, const std::string& text) {
  try {
    return parse_cpu_list(text);
  } catch (const Error&) {
    object.fail(key, "CPUs as in 0-31,64-95", beginning_in_quotes(text));
  }
}

// Files from before AMD's GPUs have no vendor.
Vendor vendor_from(JsonObject& object) {
  const auto vendor = object.text_or("vendor", kNvidia);
  if (vendor == kAmd)
    return Vendor::amd;
  if (vendor != kNvidia)
    object.fail("vendor", "nvidia or amd", beginning_in_quotes(vendor));
  return Vendor::nvidia;
}

// An instance is known by its UUID alone, so that one is needed.
std::vector<MigInstance> mig_from(JsonObject& object) {
  std::vector<MigInstance> instances;
  for (JsonObject& instance : object.objects_or_none("mig")) {
    const std::string uuid = instance.text("uuid");
    instances.push_back({.uuid = {uuid},
                         .profile = instance.text_or("profile", ""),
                         .memory_total_bytes = instance.size_or("memory_total_bytes", 0)});
    if (!uuid.starts_with("MIG-"))
      instance.fail("uuid", "MIG-<uuid>", beginning_in_quotes(uuid));
    instance.finish();
  }
  return instances;
}

// A GPU whose file does not say what is free has all of its memory free.
void read_memory(JsonObject& object, Gpu& gpu) {
  gpu.memory_total_bytes = object.size_or("memory_total_bytes", 0);
  gpu.memory_free_bytes = object.size_or("memory_free_bytes", gpu.memory_total_bytes);
  if (gpu.memory_free_bytes > gpu.memory_total_bytes) {
    object.fail("memory_free_bytes",
                cat("at most memory_total_bytes, ", gpu.memory_total_bytes),
                cat(gpu.memory_free_bytes));
  }
}

// By the text of a GPU's list of CPUs: the list as to_cpu_list writes it. Lists are long, and
// mostly the same for all GPUs of a host.
using CpuLists = std::map<std::string, std::string>;

const std::string& cpu_list_from(JsonObject& object, const char* key, CpuLists& lists) {
  const auto text = object.text_or(key, "");
  const auto [list, is_new] = lists.try_emplace(text);
  if (is_new)
    list->second = to_cpu_list(cpus_from(object, key, text));
  return list->second;
}

// The driver may not have told an unhealthy GPU's UUID. MIG mode is on where there are instances,
// unless the file says otherwise.
Gpu gpu_from(JsonObject object, CpuLists& lists) {
  Gpu gpu;
  gpu.index.value = object.small_integer("index", 0);
  gpu.health = object.text_or("health", kHealthy);
  gpu.uuid.value = object.text_or("uuid", "");
  if (gpu.health == kHealthy && !gpu.uuid.value.starts_with("GPU-")) {
    object.fail("uuid", "GPU-<uuid>", beginning_in_quotes(gpu.uuid.value));
  }
  gpu.pci.value = object.text_or("pci", "");
  gpu.vendor = vendor_from(object);
  gpu.model = object.text("model");
  read_memory(object, gpu);
  gpu.c2c = object.boolean_or("c2c", false);
  gpu.utilization_percent = object.optional_integer("utilization_percent", 0);
  gpu.temperature_celsius = object.optional_integer("temperature_celsius", -273);
  gpu.power_watts = object.optional_number("power_watts");
  gpu.power_limit_watts = object.optional_number("power_limit_watts");
  gpu.ecc_uncorrected_errors = object.optional_size("ecc_uncorrected_errors");
  gpu.repair_pending = object.boolean_or("repair_pending", false);
  gpu.compute_capability = object.text_or("compute_capability", "");
  gpu.pcie_generation = object.optional_integer("pcie_generation", 1);
  gpu.pcie_width = object.optional_integer("pcie_width", 1);
  gpu.numa_node = object.optional_integer("numa_node", 0);
  gpu.near_cpus = cpu_list_from(object, "near_cpus", lists);
  gpu.mig = mig_from(object);
  gpu.mig_enabled = object.boolean_or("mig_enabled", !gpu.mig.empty());
  for (JsonObject& process : object.objects_or_none("processes")) {
    gpu.processes.push_back({.pid = process.small_integer("pid", 1),
                             .used_memory_bytes = process.size_or("used_memory_bytes", 0)});
    process.finish();
  }
  object.finish();
  return gpu;
}

// A NIC needs a name alone; everything else about it may be unknown.
Nics nics_from(JsonObject& host) {
  Nics nics;
  for (JsonObject& object : host.objects_or_none("nics")) {
    nics.push_back({.name = object.text("name"),
                    .pci = {object.text_or("pci", "")},
                    .numa_node = object.optional_integer("numa_node", 0)});
    object.finish();
  }
  return nics;
}

// The single cores of all groups, at most as many as a host can have.
CpuCores cores_from(JsonObject& host) {
  CpuCores cores;
  for (JsonObject& group : host.objects_or_none("cores")) {
    CpuCore core;
    core.numa_node = group.small_integer_or("numa_node", 0, 0);
    core.socket = group.small_integer_or("socket", 0, 0);
    core.l3 = group.small_integer_or("l3", 0, 0);
    for (const auto& cpus : group.texts_or_none("cores")) {
      if (cores.size() == kMaxHostCores)
        group.fail("cores", cat("at most ", kMaxHostCores, " cores"), "more");
      core.cpus = cpus_from(group, "cores", cpus);
      cores.push_back(core);
    }
    group.finish();
  }
  return cores;
}

std::vector<Link> row_from(const JsonObject& host, const char* key, const std::string& text) {
  std::vector<Link> row;
  for (const auto& word : split(text, ' ')) {
    const auto link = parse_link(word);
    if (!link)
      host.fail(key, "links as in \"X NV4 SYS\"", beginning_in_quotes(word));
    row.push_back(*link);
  }
  return row;
}

// A matrix that is there must fit the devices: `rows` of `columns` links.
LinkMatrix links_from(JsonObject& host, const char* key, size_t rows, size_t columns) {
  LinkMatrix links;
  for (const auto& text : host.texts_or_none(key)) {
    auto row = row_from(host, key, text);
    if (row.size() != columns)
      host.fail(key, cat(columns, " links in each row"), cat(row.size()));
    links.push_back(std::move(row));
  }
  if (!links.empty() && links.size() != rows)
    host.fail(key, cat(rows, " rows"), cat(links.size()));
  return links;
}

// Devices are read before the links between them, whose matrices must fit their numbers.
Host host_from(JsonObject object) {
  Host host;
  host.name = object.text("name");
  if (host.name.empty())
    object.fail("name", "a host's name", "''");
  host.num_cores = object.small_integer_or("num_cores", 1, host.num_cores);
  host.cpu_slots = object.small_integer_or("cpu_slots", 1, host.cpu_slots);
  host.driver_version = object.text_or("driver_version", "");
  host.gpu_note = object.text_or("gpu_note", "");
  host.notes = object.texts_or_none("notes");
  host.gpus_expected = object.boolean_or("gpus_expected", false);
  CpuLists lists;
  for (JsonObject& gpu : object.objects_or_none("gpus"))
    host.gpus.push_back(gpu_from(std::move(gpu), lists));
  if (const auto repeated = first_repeated(host.gpus)) {
    object.fail("gpus", cat("each ", repeated->what, " once"), cat(repeated->value, " twice"));
  }
  host.nics = nics_from(object);
  host.gpu_links = links_from(object, "gpu_links", host.gpus.size(), host.gpus.size());
  host.nic_links = links_from(object, "nic_links", host.gpus.size(), host.nics.size());
  host.cores = cores_from(object);
  if (host.gpus.empty() && host.gpu_note.empty())
    host.gpu_note = "the inventory lists none";
  object.finish();
  return host;
}

}  // namespace

std::string inventory_to_json(const Inventory& inventory) {
  const auto hosts = mapped(inventory.hosts, [](const Host& host) { return to_json(host); });
  const Json document = {{"schema", kSchema},
                         {"source", inventory.source},
                         {"simulated", inventory.simulated},
                         {"hosts", std::move(hosts)}};
  return json_text(document, 2) + "\n";
}

Inventory inventory_from_json(const std::string& text, const std::string& source) {
  const auto what = cat("inventory ", source);
  const auto json = parse_strict_json(text, what);
  JsonObject document(json, what, "");
  check_schema(document, kSchema);
  // These two tell where the text was captured; from now on its machines come from this file.
  document.text_or("source", "");
  document.boolean_or("simulated", true);
  Inventory inventory{.source = source, .simulated = true, .hosts = {}};
  StringSet names;
  for (JsonObject& host : document.objects("hosts")) {
    inventory.hosts.push_back(host_from(std::move(host)));
    const std::string& name = inventory.hosts.back().name;
    if (!names.insert(name).second)
      document.fail("hosts", "each host's name once", cat(beginning_in_quotes(name), " twice"));
  }
  if (inventory.hosts.empty())
    document.fail("hosts", "at least one host", "none");
  document.finish();
  return inventory;
}

}  // namespace muster
