// The machine, as JSON.

#include "muster/c_api.h"
#include "muster/c_api/answer.h"
#include "muster/c_api/json_argument.h"
#include "muster/device/inventory_json.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/device/strict_json.h"

namespace muster {

namespace {

Inventory machine_of(const char* options) {
  const nlohmann::json json = json_argument(options, "muster_devices");
  JsonObject object(json, "muster_devices", "options");
  const auto path = object.text_or("inventory", "");
  object.finish();
  if (!path.empty())
    return read_inventory(path);
  return probe_this_machine({.detail = GpuDetail::full, .links = true, .cpu_topology = true});
}

}  // namespace

}  // namespace muster

extern "C" int muster_devices(const char* options, char** json) {
  return muster::answer_text(
      json, [&] { return muster::inventory_to_json(muster::machine_of(options)); });
}
