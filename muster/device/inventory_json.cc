#include "muster/device/inventory_json.h"

#include <algorithm>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/device/strict_json.h"

namespace muster {
namespace {

constexpr const char* kSchema = "muster.devices/1";

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const Gpu& gpu) {
  Json processes = Json::array();
  for (const GpuProcess& process : gpu.processes) {
    processes.push_back({{"pid", process.pid}, {"used_memory_bytes", process.used_memory_bytes}});
  }
  return {{"index", gpu.index.value},
          {"uuid", gpu.uuid.value},
          {"pci", gpu.pci.value},
          {"model", gpu.model},
          {"memory_total_bytes", gpu.memory_total_bytes},
          {"memory_free_bytes", gpu.memory_free_bytes},
          {"utilization_percent", or_null(gpu.utilization_percent)},
          {"temperature_celsius", or_null(gpu.temperature_celsius)},
          {"power_watts", or_null(gpu.power_watts)},
          {"compute_capability", gpu.compute_capability},
          {"numa_node", or_null(gpu.numa_node)},
          {"health", gpu.health},
          {"processes", std::move(processes)}};
}

Json to_json(const Host& host) {
  Json gpus = Json::array();
  for (const Gpu& gpu : host.gpus) gpus.push_back(to_json(gpu));
  return {{"name", host.name},           {"num_cores", host.num_cores},
          {"cpu_slots", host.cpu_slots}, {"driver_version", host.driver_version},
          {"gpu_note", host.gpu_note},   {"gpus", std::move(gpus)}};
}

Gpu gpu_from(JsonObject object) {
  Gpu gpu;
  gpu.index.value = static_cast<int>(object.integer("index", 0));
  gpu.health = object.text_or("health", kHealthy);
  gpu.uuid.value = object.text_or("uuid", "");
  if (gpu.health == kHealthy && !gpu.uuid.value.starts_with("GPU-")) {
    object.fail("uuid", "GPU-<uuid>", cat("'", gpu.uuid.value, "'"));
  }
  gpu.pci.value = object.text_or("pci", "");
  gpu.model = object.text("model");
  gpu.memory_total_bytes = object.size_or("memory_total_bytes", 0);
  gpu.memory_free_bytes = object.size_or("memory_free_bytes", gpu.memory_total_bytes);
  if (gpu.memory_free_bytes > gpu.memory_total_bytes) {
    object.fail("memory_free_bytes", cat("at most memory_total_bytes, ", gpu.memory_total_bytes),
                cat(gpu.memory_free_bytes));
  }
  gpu.utilization_percent = object.optional_integer("utilization_percent", 0);
  gpu.temperature_celsius = object.optional_integer("temperature_celsius", -273);
  gpu.power_watts = object.optional_number("power_watts");
  gpu.compute_capability = object.text_or("compute_capability", "");
  gpu.numa_node = object.optional_integer("numa_node", 0);
  for (JsonObject& process : object.objects_or_none("processes")) {
    gpu.processes.push_back({.pid = static_cast<int>(process.integer("pid", 1)),
                             .used_memory_bytes = process.size_or("used_memory_bytes", 0)});
    process.finish();
  }
  object.finish();
  return gpu;
}

// Two GPUs of one host that share `value` would be taken for one.
void check_distinct(const JsonObject& object, const std::vector<Gpu>& gpus) {
  std::set<std::string> seen;
  const auto once = [&](const char* what, const std::string& value) {
    if (value.empty() || seen.insert(cat(what, " ", value)).second) return;
    object.fail("gpus", cat("each ", what, " once"), cat(value, " twice"));
  };
  for (const Gpu& gpu : gpus) {
    once("index", cat(gpu.index.value));
    once("UUID", gpu.uuid.value);
    once("PCI address", gpu.pci.value);
  }
}

Host host_from(JsonObject object) {
  Host host;
  host.name = object.text("name");
  if (host.name.empty()) object.fail("name", "a host's name", "''");
  host.num_cores = static_cast<int>(object.integer_or("num_cores", 1, host.num_cores));
  host.cpu_slots = static_cast<int>(object.integer_or("cpu_slots", 1, host.cpu_slots));
  host.driver_version = object.text_or("driver_version", "");
  host.gpu_note = object.text_or("gpu_note", "");
  for (JsonObject& gpu : object.objects_or_none("gpus")) host.gpus.push_back(gpu_from(std::move(gpu)));
  check_distinct(object, host.gpus);
  if (host.gpus.empty() && host.gpu_note.empty()) host.gpu_note = "the inventory lists none";
  object.finish();
  return host;
}

}  // namespace

std::string inventory_to_json(const Inventory& inventory) {
  Json hosts = Json::array();
  for (const Host& host : inventory.hosts) hosts.push_back(to_json(host));
  const Json document = {{"schema", kSchema},
                         {"source", inventory.source},
                         {"simulated", inventory.simulated},
                         {"hosts", std::move(hosts)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Inventory inventory_from_json(const std::string& text, const std::string& source) {
  const std::string what = cat("inventory ", source);
  const auto json = parse_strict_json(text, what);
  JsonObject document(json, what, "");
  check_schema(document, kSchema);
  document.text_or("source", "");  // where it was captured; from now on it comes from this file
  document.boolean_or("simulated", true);
  Inventory inventory{.source = source, .simulated = true, .hosts = {}};
  std::set<std::string> names;
  for (JsonObject& host : document.objects("hosts")) {
    inventory.hosts.push_back(host_from(std::move(host)));
    if (!names.insert(inventory.hosts.back().name).second) {
      document.fail("hosts", "each host's name once", cat("'", inventory.hosts.back().name, "' twice"));
    }
  }
  if (inventory.hosts.empty()) document.fail("hosts", "at least one host", "none");
  document.finish();
  return inventory;
}

Inventory read_inventory(const std::string& path) {
  return inventory_from_json(read_file(path), path);
}

}  // namespace muster
