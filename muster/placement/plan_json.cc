// Ranks are written as text, all else by nlohmann::json. Reading checks more than the form: whoever
// executes a plan relies on the order of its ranks, on ids and on shares, so a plan that somebody
// edited must hold together.
#include "muster/placement/plan_json.h"

#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
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
#include "muster/placement/plan_part.h"

namespace muster {
namespace {

constexpr auto kSchema = "muster.plan/1";

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json_text(json);
}

// As dump() writes it. Most texts need no escapes.
std::string quoted(const std::string& text) {
  const auto is_plain = [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  };
  return all_of(text, is_plain) ? cat("\"", text, "\"") : dump(text);
}

// An object's members, written one after the other: a plan has very many ranks, and a tree of
// values for each takes several times as long.
class ObjectText {
 public:
  void add(std::string_view key, const std::string& text) { add_json(key, quoted(text)); }
  void add(std::string_view key, std::integral auto number) { add_json(key, cat(number)); }
  void add_json(std::string_view key, std::string_view json) {
    text_ += text_.size() == 1 ? "\"" : ",\"";
    text_ += key;
    text_ += "\":";
    text_ += json;
  }
  std::string end() { return std::move(text_) + "}"; }

 private:
  std::string text_ = "{";
};

// The vendor is left out for NVIDIA, as in plans from before there was one.
std::string to_text(const DeviceAssignment& device) {
  ObjectText object;
  object.add("id", device.id());
  if (!device.is_gpu()) {
    object.add("kind", "cpu");
    object.add("cpu_slot", device.cpu_slot);
    return object.end();
  }
  object.add("kind", "cuda");
  object.add("uuid", device.uuid.value);
  object.add("index", device.index.value);
  object.add("model", device.model);
  object.add("ordinal", device.ordinal.value);
  if (device.vendor == Vendor::amd)
    object.add("vendor", "amd");
  if (!device.pci.value.empty())
    object.add("pci", device.pci.value);
  return object.end();
}

// A fact that is not known or was not asked for is left out.
void add_what_it_has(ObjectText& object, const RankPlan& rank) {
  object.add_json("device", to_text(rank.device));
  if (!rank.more_devices.empty()) {
    const auto devices =
        mapped(rank.more_devices, [](const DeviceAssignment& device) { return to_text(device); });
    object.add_json("more_devices", cat("[", join(devices, ","), "]"));
  }
  if (rank.numa_node)
    object.add("numa_node", *rank.numa_node);
  if (!rank.cpus.empty())
    object.add("cpus", rank.cpus);
  if (rank.bind_cpus)
    object.add_json("bind_cpus", "true");
  if (rank.batch_share > 0)
    object.add("batch_share", rank.batch_share);
  object.add("reason", rank.reason);
}

std::string to_text(const RankPlan& rank) {
  ObjectText object;
  object.add("rank", rank.rank);
  object.add("local_rank", rank.local_rank);
  object.add("host_index", rank.host_index);
  object.add("host", rank.host);
  add_what_it_has(object, rank);
  return object.end();
}

// Without its place, which follows from that of the host.
std::string text_on_its_host(const RankPlan& rank) {
  ObjectText object;
  add_what_it_has(object, rank);
  return object.end();
}

// The shares in runs: "64*6,32*2".
std::string text_of_shares(const Int64s& shares) {
  Strings runs;
  for (size_t i = 0; i < shares.size();) {
    const size_t begin = i;
    while (i < shares.size() && shares[i] == shares[begin])
      ++i;
    runs.push_back(cat(shares[begin], "*", i - begin));
  }
  return join(runs, ",");
}

Json to_json(const PlanPart& part) {
  return {{"first_rank", part.first_rank},
          {"hosts_before", part.hosts_before},
          {"num_hosts", part.num_hosts},
          {"own_gpus", part.own_gpus},
          {"batch_shares", text_of_shares(part.batch_shares)},
          {"digest", part.digest}};
}

// A plan without a vendor is one of NVIDIA's GPUs.
Vendor vendor_from(JsonObject& object) {
  const auto vendor = object.text_or("vendor", "nvidia");
  if (!is_one_of(vendor, "nvidia", "amd"))
    object.fail("vendor", "'nvidia' or 'amd'", in_quotes(vendor));
  return vendor == "amd" ? Vendor::amd : Vendor::nvidia;
}

// "cuda" is the word of the format for a GPU of either vendor.
void read_gpu(JsonObject& object, DeviceAssignment& device) {
  device.kind = DeviceAssignment::Kind::gpu;
  const std::string uuid = object.text("uuid");
  if (!uuid.starts_with("GPU-") && !uuid.starts_with("MIG-"))
    object.fail("uuid", "GPU-<uuid> or MIG-<uuid>", in_quotes(uuid));
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
    object.fail("kind", "'cpu' or 'cuda'", in_quotes(kind));
  }
  if (id != device.id())
    object.fail("id", in_quotes(device.id()), in_quotes(id));
  object.finish();
  return device;
}

void read_cpus(JsonObject& object, RankPlan& rank) {
  rank.cpus = object.text_or("cpus", "");
  try {
    parse_cpu_list(rank.cpus);
  } catch (const Error&) {
    object.fail("cpus", "a list of CPUs (0-31,64-95)", in_quotes(rank.cpus));
  }
  rank.bind_cpus = object.boolean_or("bind_cpus", false);
  if (rank.bind_cpus && rank.cpus.empty())
    object.fail("bind_cpus", "cpus to bind to", "true without cpus");
}

// Reads the numbers and the host of a rank. Ranks count up over hosts, local ranks within one: what
// everybody who reads a plan relies on.
void read_place(JsonObject& object,
                const std::vector<RankPlan>& before,
                int first_rank,
                RankPlan& rank) {
  const int next = first_rank + int_size(before);
  rank.rank = object.small_integer("rank", next, next);
  const RankPlan last = before.empty() ? RankPlan() : before.back();
  rank.host_index = object.small_integer("host_index", last.host_index);
  const bool same_host = !before.empty() && rank.host_index == last.host_index;
  const int next_local = same_host ? last.local_rank + 1 : 0;
  rank.local_rank = object.small_integer("local_rank", next_local, next_local);
  rank.host = object.text("host");
  if (same_host && rank.host != last.host)
    object.fail("host", cat("'", last.host, "', as host_index says"), in_quotes(rank.host));
}

// A rank's further devices are GPUs like its first.
void read_more_devices(JsonObject& object, RankPlan& rank) {
  const bool has_gpu = rank.device.is_gpu();
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

void read_what_it_has(JsonObject& object, RankPlan& rank) {
  rank.device = device_from(object.object("device"));
  read_more_devices(object, rank);
  rank.numa_node = object.optional_integer("numa_node", 0);
  read_cpus(object, rank);
  rank.batch_share = object.size_or("batch_share", 0);
  rank.reason = object.text_or("reason", "");
  object.finish();
}

RankPlan rank_from(JsonObject object, const std::vector<RankPlan>& before, int first_rank) {
  RankPlan rank;
  read_place(object, before, first_rank, rank);
  read_what_it_has(object, rank);
  return rank;
}

// A text that says more is damaged, or somebody's attack: lists of as many elements are made.
constexpr int kMostRanks = 10'000'000;

// The shares of as many ranks as there are, or none.
Int64s shares_from(JsonObject& part, int num_ranks) {
  const auto text = part.text_or("batch_shares", "");
  Int64s shares;
  if (text.empty())
    return shares;
  for (const auto& run : split(text, ',')) {
    const auto words = split(run, '*');
    const auto share = parse_int(words.front());
    const auto count = parse_int(words.back());
    const int64_t left = num_ranks - std::ssize(shares);
    if (words.size() != 2 || !share || !count || *share < 1 || *count < 1 || *count > left)
      part.fail("batch_shares", cat("the shares of ", num_ranks, " ranks"), in_quotes(run));
    shares.insert(shares.end(), *count, *share);
  }
  if (int_size(shares) != num_ranks)
    part.fail("batch_shares", cat("the shares of ", num_ranks, " ranks"), cat(shares.size()));
  return shares;
}

// A part says how many ranks the whole has.
std::optional<PlanPart> part_from(JsonObject& document) {
  auto parts = document.object_or_none("part");
  if (!parts)
    return std::nullopt;
  PlanPart part{.first_rank = parts->small_integer("first_rank", 0, kMostRanks),
                .world_size = document.small_integer("world_size", 1, kMostRanks),
                .hosts_before = parts->small_integer("hosts_before", 0),
                .num_hosts = parts->small_integer("num_hosts", 0),
                .own_gpus = parts->boolean_or("own_gpus", false)};
  part.batch_shares = shares_from(*parts, part.world_size);
  part.digest = parts->text_or("digest", "");
  parts->finish();
  return part;
}

// A whole plan has the number of ranks that it says. A part has no more than that.
int world_size_from(JsonObject& document, const Plan& plan) {
  const int size = int_size(plan.ranks);
  if (plan.part) {
    if (plan.part->world_size - plan.part->first_rank < size)
      document.fail("world_size", cat(plan.part->first_rank + size, " at least"), "less");
    return plan.part->world_size;
  }
  if (plan.ranks.empty())
    document.fail("ranks", "at least one rank", "none");
  const int said = document.small_integer_or("world_size", 1, size);
  if (said != size)
    document.fail("world_size",
                  cat(size, ", the number of its ranks,"),
                  cat(said, "; correct it, or make the plan anew"));
  return size;
}

// The error names the member of the document instead of the flag.
Visibility visibility_from(JsonObject& document) {
  const std::string text = document.text("visibility");
  try {
    return parse_visibility(text);
  } catch (const Error&) {
    document.fail("visibility", "'job', 'own', 'own-first' or 'all'", in_quotes(text));
  }
}

// The sizes of the mesh must give the number of ranks.
MeshShape mesh_from(JsonObject& document, int num_ranks) {
  const auto text = document.text_or("mesh", "");
  if (text.empty())
    return {};
  try {
    return parse_mesh(text, num_ranks);
  } catch (const Error& error) {
    document.fail("mesh", "a mesh of the plan's ranks", cat("'", text, "': ", error.message()));
  }
}

// Everybody who reads a plan relies on the shares: they are the whole batch, and no rank is
// without. A part's ranks have some of it.
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
  if (left != 0 && !plan.part)
    document.fail("global_batch", "the sum of all shares", cat(left, " more"));
}

}  // namespace

std::string plan_to_json(const Plan& plan, const std::string& model) {
  // One rank a line is small enough for many ranks, and can still be read, searched and compared by
  // line.
  Strings members;
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
  add("world_size", cat(world_size(plan)));
  if (plan.part)
    add("part", dump(to_json(*plan.part)));
  const auto ranks =
      mapped(plan.ranks, [](const RankPlan& rank) { return cat("\n    ", to_text(rank)); });
  add("ranks", cat("[", join(ranks, ","), "\n  ]"));
  add("notes", dump(plan.notes));
  if (!plan.warnings.empty())
    add("warnings", dump(plan.warnings));
  if (!model.empty())
    add("model", model);
  return cat("{", join(members, ","), "\n}\n");
}

std::string host_ranks_to_json(const HostRanks& host) {
  ObjectText object;
  object.add("host_index", host.host_index);
  object.add("first_rank", host.first_rank);
  object.add("hosts_before", host.hosts_before);
  object.add("host", host.ranks.empty() ? std::string() : host.ranks.front().host);
  const auto ranks = mapped(host.ranks, text_on_its_host);
  object.add_json("ranks", cat("[", join(ranks, ","), "]"));
  return object.end();
}

HostRanks host_ranks_from_json(const std::string& text, const std::string& source) {
  const auto what = cat("ranks of ", source);
  const auto json = parse_strict_json(text, what);
  JsonObject document(json, what, "");
  HostRanks host{.host_index = document.small_integer("host_index", 0),
                 .first_rank = document.small_integer("first_rank", 0, kMostRanks),
                 .hosts_before = document.small_integer("hosts_before", 0)};
  const std::string name = document.text("host");
  for (JsonObject& object : document.objects("ranks")) {
    const int local_rank = int_size(host.ranks);
    RankPlan rank{.rank = host.first_rank + local_rank,
                  .local_rank = local_rank,
                  .host_index = host.host_index,
                  .host = name};
    read_what_it_has(object, rank);
    host.ranks.push_back(std::move(rank));
  }
  document.finish();
  return host;
}

// Ranks come before the mesh and the shares, which are checked against them.
Plan plan_from_json(const std::string& text, const std::string& source) {
  const auto what = cat("plan ", source);
  const auto json = parse_strict_json(text, what);
  JsonObject document(json, what, "");
  check_schema(document, kSchema);
  Plan plan;
  plan.policy = document.text("policy");
  plan.visibility = visibility_from(document);
  plan.simulated = document.boolean_or("simulated", false);
  plan.part = part_from(document);
  const int first_rank = plan.part ? plan.part->first_rank : 0;
  for (JsonObject& rank : document.objects("ranks"))
    plan.ranks.push_back(rank_from(std::move(rank), plan.ranks, first_rank));
  plan.mesh = mesh_from(document, world_size_from(document, plan));
  plan.global_batch = document.size_or("global_batch", 0);
  check_shares(document, plan);
  plan.notes = document.texts_or_none("notes");
  plan.warnings = document.texts_or_none("warnings");
  document.ignore("model");
  document.finish();
  return plan;
}

}  // namespace muster
