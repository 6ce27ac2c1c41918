#include "muster/placement/plan_json.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/strict_json.h"

namespace muster {
namespace {

constexpr const char* kSchema = "muster.plan/1";

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json to_json(const DeviceAssignment& device) {
  Json json = {{"id", device.id()}};
  if (device.kind == DeviceAssignment::Kind::cpu) {
    json.update({{"kind", "cpu"}, {"cpu_slot", device.cpu_slot}});
  } else {
    json.update({{"kind", "cuda"},
                 {"uuid", device.uuid.value},
                 {"index", device.index.value},
                 {"model", device.model},
                 {"ordinal", device.ordinal.value}});
    if (device.vendor == Vendor::amd)
      json["vendor"] = "amd";
    if (!device.pci.value.empty())
      json["pci"] = device.pci.value;
  }
  return json;
}

// What is not known or not asked for is left out.
Json to_json(const RankPlan& rank) {
  Json json = {{"rank", rank.rank},
               {"local_rank", rank.local_rank},
               {"host_index", rank.host_index},
               {"host", rank.host},
               {"device", to_json(rank.device)}};
  for (const DeviceAssignment& device : rank.more_devices)
    json["more_devices"].push_back(to_json(device));
  if (rank.numa_node)
    json["numa_node"] = *rank.numa_node;
  if (!rank.cpus.empty())
    json["cpus"] = rank.cpus;
  if (rank.bind_cpus)
    json["bind_cpus"] = true;
  if (rank.batch_share > 0)
    json["batch_share"] = rank.batch_share;
  json["reason"] = rank.reason;
  return json;
}

Vendor vendor_from(JsonObject& object) {
  const std::string vendor = object.text_or("vendor", "nvidia");
  if (vendor != "nvidia" && vendor != "amd")
    object.fail("vendor", "'nvidia' or 'amd'", cat("'", vendor, "'"));
  return vendor == "amd" ? Vendor::amd : Vendor::nvidia;
}

DeviceAssignment device_from(JsonObject object) {
  DeviceAssignment device;
  const std::string kind = object.text("kind");
  const std::string id = object.text("id");
  if (kind == "cpu") {
    device.cpu_slot = static_cast<int>(object.integer("cpu_slot", 0));
  } else if (kind == "cuda") {
    device.kind = DeviceAssignment::Kind::gpu;
    device.uuid.value = object.text("uuid");
    if (!device.uuid.value.starts_with("GPU-") && !device.uuid.value.starts_with("MIG-")) {
      object.fail("uuid", "GPU-<uuid> or MIG-<uuid>", cat("'", device.uuid.value, "'"));
    }
    device.pci.value = object.text_or("pci", "");
    device.vendor = vendor_from(object);
    device.index.value = static_cast<int>(object.integer("index", 0));
    device.model = object.text_or("model", "");
    device.ordinal.value = static_cast<int>(object.integer("ordinal", 0));
  } else {
    object.fail("kind", "'cpu' or 'cuda'", cat("'", kind, "'"));
  }
  if (id != device.id())
    object.fail("id", cat("'", device.id(), "'"), cat("'", id, "'"));
  object.finish();
  return device;
}

void read_cpus(JsonObject& object, RankPlan& rank) {
  rank.cpus = object.text_or("cpus", "");
  try {
    parse_cpu_list(rank.cpus);
  } catch (const Error&) {
    object.fail("cpus", "a list of CPUs (0-31,64-95)", cat("'", rank.cpus, "'"));
  }
  rank.bind_cpus = object.boolean_or("bind_cpus", false);
  if (rank.bind_cpus && rank.cpus.empty())
    object.fail("bind_cpus", "cpus to bind to", "true without cpus");
}

// Ranks count up over hosts, local ranks within one: what everybody who reads a plan relies on.
RankPlan rank_from(JsonObject object, const std::vector<RankPlan>& before) {
  RankPlan rank;
  const auto next = static_cast<int64_t>(before.size());
  rank.rank = static_cast<int>(object.integer("rank", next, next));
  const int last_host = before.empty() ? 0 : before.back().host_index;
  rank.host_index = static_cast<int>(object.integer("host_index", last_host));
  const bool same_host = !before.empty() && rank.host_index == last_host;
  const int next_local = same_host ? before.back().local_rank + 1 : 0;
  rank.local_rank = static_cast<int>(object.integer("local_rank", next_local, next_local));
  rank.host = object.text("host");
  if (same_host && rank.host != before.back().host) {
    object.fail(
        "host", cat("'", before.back().host, "', as host_index says"), cat("'", rank.host, "'"));
  }
  rank.device = device_from(object.object("device"));
  for (JsonObject& more : object.objects_or_none("more_devices")) {
    const DeviceAssignment device = device_from(std::move(more));
    if (rank.device.kind != DeviceAssignment::Kind::gpu || device.kind != rank.device.kind ||
        device.vendor != rank.device.vendor)
      object.fail("more_devices",
                  "GPUs of the vendor of `device`",
                  cat(device.id(), " beside ", rank.device.id()));
    rank.more_devices.push_back(device);
  }
  rank.numa_node = object.optional_integer("numa_node", 0);
  read_cpus(object, rank);
  rank.batch_share = static_cast<int64_t>(object.size_or("batch_share", 0));
  rank.reason = object.text_or("reason", "");
  object.finish();
  return rank;
}

Visibility visibility_from(JsonObject& document) {
  const std::string text = document.text("visibility");
  try {
    return parse_visibility(text);
  } catch (const Error&) {
    document.fail("visibility", "'job', 'own', 'own-first' or 'all'", cat("'", text, "'"));
  }
}

MeshShape mesh_from(JsonObject& document, int num_ranks) {
  const std::string text = document.text_or("mesh", "");
  if (text.empty())
    return {};
  try {
    return parse_mesh(text, num_ranks);
  } catch (const Error& error) {
    document.fail("mesh", "a mesh of the plan's ranks", cat("'", text, "': ", error.message()));
  }
}

// Everybody who reads a plan relies on the shares: they are the whole batch, and no rank is
// without.
void check_shares(const JsonObject& document, const Plan& plan) {
  int64_t left = plan.global_batch;
  for (const RankPlan& rank : plan.ranks) {
    const bool fits = plan.global_batch > 0 ? 0 < rank.batch_share && rank.batch_share <= left
                                            : rank.batch_share == 0;
    if (!fits) {
      document.fail(cat("ranks[", rank.rank, "].batch_share"),
                    cat("shares of at least 1 that sum to global_batch ", plan.global_batch),
                    cat(rank.batch_share));
    }
    left -= rank.batch_share;
  }
  if (left != 0)
    document.fail("global_batch", "the sum of all shares", cat(left, " more"));
}

}  // namespace

std::string plan_to_json(const Plan& plan, const std::string& model) {
  // One rank a line: small enough for many ranks, and still readable, greppable and comparable by
  // line.
  std::string text =
      cat("{\n  \"schema\": ",
          dump(kSchema),
          ",\n  \"policy\": ",
          dump(plan.policy),
          plan.mesh.axes.empty() ? "" : cat(",\n  \"mesh\": ", dump(to_string(plan.mesh))),
          plan.global_batch > 0 ? cat(",\n  \"global_batch\": ", plan.global_batch) : "",
          ",\n  \"visibility\": ",
          dump(to_string(plan.visibility)),
          ",\n  \"simulated\": ",
          plan.simulated,
          ",\n  \"world_size\": ",
          plan.ranks.size(),
          ",\n  \"ranks\": [");
  const char* separator = "\n    ";
  for (const RankPlan& rank : plan.ranks) {
    text += separator;
    text += dump(to_json(rank));
    separator = ",\n    ";
  }
  text += cat("\n  ],\n  \"notes\": ", dump(plan.notes));
  if (!plan.warnings.empty())
    text += cat(",\n  \"warnings\": ", dump(plan.warnings));
  if (!model.empty())
    text += cat(",\n  \"model\": ", model);
  text += "\n}\n";
  return text;
}

Plan plan_from_json(const std::string& text, const std::string& source) {
  const std::string what = cat("plan ", source);
  const auto json = parse_strict_json(text, what);
  JsonObject document(json, what, "");
  check_schema(document, kSchema);
  Plan plan;
  plan.policy = document.text("policy");
  plan.visibility = visibility_from(document);
  plan.simulated = document.boolean_or("simulated", false);
  for (JsonObject& rank : document.objects("ranks"))
    plan.ranks.push_back(rank_from(std::move(rank), plan.ranks));
  if (plan.ranks.empty())
    document.fail("ranks", "at least one rank", "none");
  const auto size = static_cast<int64_t>(plan.ranks.size());
  if (document.integer_or("world_size", 1, size) != size) {
    document.fail("world_size", cat(size, ", the number of ranks"), "another number");
  }
  plan.mesh = mesh_from(document, static_cast<int>(size));
  plan.global_batch = static_cast<int64_t>(document.size_or("global_batch", 0));
  check_shares(document, plan);
  plan.notes = document.texts_or_none("notes");
  plan.warnings = document.texts_or_none("warnings");
  document.ignore("model");
  document.finish();
  return plan;
}

}  // namespace muster
