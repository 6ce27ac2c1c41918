#include "muster/placement/plan_json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/numbers.h"
#include "muster/device/strict_json.h"

// Reading checks more than the form: whoever executes a plan relies on the order of its ranks, on
// ids and on shares, so a plan that somebody edited must hold together.

namespace muster {
namespace {

constexpr const char* kSchema = "muster.plan/1";

using Json = nlohmann::ordered_json;

// Names of hosts may be any bytes; those that are no UTF-8 are replaced.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The vendor is left out for NVIDIA, as in plans from before there was one.
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
    add_unless_default(json, "pci", device.pci.value);
  }
  return json;
}

// A fact that is not known or was not asked for is left out.
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
  add_unless_default(json, "cpus", rank.cpus);
  add_unless_default(json, "bind_cpus", rank.bind_cpus);
  if (rank.batch_share > 0)
    json["batch_share"] = rank.batch_share;
  json["reason"] = rank.reason;
  return json;
}

// A plan without a vendor is one of NVIDIA's GPUs.
Vendor vendor_from(JsonObject& object) {
  const std::string vendor = object.text_or("vendor", "nvidia");
  if (!is_one_of(vendor, "nvidia", "amd"))
    object.fail("vendor", "'nvidia' or 'amd'", cat("'", vendor, "'"));
  return vendor == "amd" ? Vendor::amd : Vendor::nvidia;
}

// "cuda" is the word of the format for a GPU of either vendor.
void read_gpu(JsonObject& object, DeviceAssignment& device) {
  device.kind = DeviceAssignment::Kind::gpu;
  const std::string uuid = object.text("uuid");
  if (!uuid.starts_with("GPU-") && !uuid.starts_with("MIG-"))
    object.fail("uuid", "GPU-<uuid> or MIG-<uuid>", cat("'", uuid, "'"));
  device.uuid.value = uuid;
  device.pci.value = object.text_or("pci", "");
  device.vendor = vendor_from(object);
  device.index.value = object.small_integer("index", 0);
  device.model = object.text_or("model", "");
  device.ordinal.value = object.small_integer("ordinal", 0);
}

// The id is redundant, and must agree with the other members.
DeviceAssignment device_from(JsonObject object) {
  DeviceAssignment device;
  const std::string kind = object.text("kind");
  const std::string id = object.text("id");
  if (kind == "cpu") {
    device.cpu_slot = object.small_integer("cpu_slot", 0);
  } else if (kind == "cuda") {
    read_gpu(object, device);
  } else {
    object.fail("kind", "'cpu' or 'cuda'", cat("'", kind, "'"));
  }
  if (id != device.id())
    object.fail("id", cat("'", device.id(), "'"), cat("'", id, "'"));
  object.finish();
  return device;
}

// A number of samples, 0 when it is absent. JsonObject's sizes fit into 63 bits.
int64_t size_from(JsonObject& object, const char* key) {
  const uint64_t size = object.size_or(key, 0);
  return static_cast<int64_t>(size);
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

// Reads the numbers and the host of a rank. Ranks count up over hosts, local ranks within one: what
// everybody who reads a plan relies on.
void read_place(JsonObject& object, const std::vector<RankPlan>& before, RankPlan& rank) {
  const int next = int_size(before);
  rank.rank = object.small_integer("rank", next, next);
  const RankPlan last = before.empty() ? RankPlan() : before.back();
  rank.host_index = object.small_integer("host_index", last.host_index);
  const bool same_host = !before.empty() && rank.host_index == last.host_index;
  const int next_local = same_host ? last.local_rank + 1 : 0;
  rank.local_rank = object.small_integer("local_rank", next_local, next_local);
  rank.host = object.text("host");
  if (same_host && rank.host != last.host)
    object.fail("host", cat("'", last.host, "', as host_index says"), cat("'", rank.host, "'"));
}

// A rank's further devices are GPUs like its first.
void read_more_devices(JsonObject& object, RankPlan& rank) {
  const bool has_gpu = rank.device.kind == DeviceAssignment::Kind::gpu;
  for (JsonObject& more : object.objects_or_none("more_devices")) {
    const DeviceAssignment device = device_from(std::move(more));
    const bool is_alike = device.kind == rank.device.kind && device.vendor == rank.device.vendor;
    if (!has_gpu || !is_alike) {
      object.fail("more_devices",
                  "GPUs of the vendor of `device`",
                  cat(device.id(), " beside ", rank.device.id()));
    }
    rank.more_devices.push_back(device);
  }
}

RankPlan rank_from(JsonObject object, const std::vector<RankPlan>& before) {
  RankPlan rank;
  read_place(object, before, rank);
  rank.device = device_from(object.object("device"));
  read_more_devices(object, rank);
  rank.numa_node = object.optional_integer("numa_node", 0);
  read_cpus(object, rank);
  rank.batch_share = size_from(object, "batch_share");
  rank.reason = object.text_or("reason", "");
  object.finish();
  return rank;
}

// The error names the member of the document instead of the flag.
Visibility visibility_from(JsonObject& document) {
  const std::string text = document.text("visibility");
  try {
    return parse_visibility(text);
  } catch (const Error&) {
    document.fail("visibility", "'job', 'own', 'own-first' or 'all'", cat("'", text, "'"));
  }
}

// The sizes of the mesh must give the number of ranks.
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
    const int64_t least = plan.global_batch > 0 ? 1 : 0;
    if (rank.batch_share < least || rank.batch_share > left) {
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
  // One rank a line is small enough for many ranks, and can still be read, searched and compared by
  // line.
  std::vector<std::string> members;
  const auto add = [&](const char* name, const std::string& value) {
    members.push_back(cat("\n  \"", name, "\": ", value));
  };
  add("schema", dump(kSchema));
  add("policy", dump(plan.policy));
  if (!plan.mesh.axes.empty())
    add("mesh", dump(to_string(plan.mesh)));
  if (plan.global_batch > 0)
    add("global_batch", cat(plan.global_batch));
  add("visibility", dump(to_string(plan.visibility)));
  add("simulated", dump(plan.simulated));
  add("world_size", cat(plan.ranks.size()));
  const auto ranks =
      mapped(plan.ranks, [](const RankPlan& rank) { return cat("\n    ", dump(to_json(rank))); });
  add("ranks", cat("[", join(ranks, ","), "\n  ]"));
  add("notes", dump(plan.notes));
  if (!plan.warnings.empty())
    add("warnings", dump(plan.warnings));
  if (!model.empty())
    add("model", model);
  return cat("{", join(members, ","), "\n}\n");
}

// Ranks come before the mesh and the shares, which are checked against them.
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
  const int size = int_size(plan.ranks);
  if (document.small_integer_or("world_size", 1, size) != size)
    document.fail("world_size", cat(size, ", the number of ranks"), "another number");
  plan.mesh = mesh_from(document, size);
  plan.global_batch = size_from(document, "global_batch");
  check_shares(document, plan);
  plan.notes = document.texts_or_none("notes");
  plan.warnings = document.texts_or_none("warnings");
  document.ignore("model");
  document.finish();
  return plan;
}

}  // namespace muster
