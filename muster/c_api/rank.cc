// A rank's facts and its device, as JSON.
#include <algorithm>
#include <string>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/host_identity.h"
#include "muster/base/json_member.h"
#include "muster/base/rank_env.h"
#include "muster/base/route.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/c_api.h"
#include "muster/c_api/answer.h"
#include "muster/c_api/json_argument.h"
#include "muster/device/strict_json.h"
#include "muster/launch/assigned_device.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_part.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/store/rendezvous_file.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

RankEnv own_rank() {
  return rank_env_from_environment().value_or(RankEnv{});
}

Json batch_shares(const RankEnv& env) {
  if (env.plan.empty())
    return Json::array();
  const auto assigned = assigned_device(env, Surplus::error);
  return assigned ? Json(assigned->batch_shares) : Json::array();
}

// Units: seconds; null where it is not told.
Json collective_timeout() {
  const auto told = get_env("MUSTER_COLLECTIVE_TIMEOUT");
  if (!told)
    return nullptr;
  const auto limit = parse_duration(*told, "MUSTER_COLLECTIVE_TIMEOUT");
  return in_seconds(limit);
}

// Ranks that nobody has told where rank 0 listens get the file by which it can say it, and the
// address at which it can be reached.
Json meeting_of(const RankEnv& env) {
  if (env.source.empty() || !env.master_addr.empty() || env.world_size < 2)
    return nullptr;
  const auto place = rendezvous_place_of_environment("python");
  if (!place)
    return nullptr;
  return {{"path", place->path}, {"address", place->one_host ? "127.0.0.1" : outward_address()}};
}

std::string facts() {
  const RankEnv env = own_rank();
  return json_text(Json{{"source", env.source},
                        {"rank", env.rank},
                        {"world_size", env.world_size},
                        {"local_rank", env.local_rank},
                        {"local_world_size", env.local_world_size},
                        {"local_rank_told", env.local_rank_told},
                        {"group_rank", env.group_rank},
                        {"group_world_size", env.group_world_size},
                        {"role_name", env.role_name},
                        {"master_addr", env.master_addr},
                        {"master_port", env.master_port},
                        {"restart_count", env.restart_count},
                        {"max_restarts", env.max_restarts},
                        {"attempt", env.attempt},
                        {"run_id", env.run_id},
                        {"device", env.device},
                        {"plan", env.plan},
                        {"store", env.store},
                        {"run_dir", env.run_dir},
                        {"backend", env.backend},
                        {"simulated", env.simulated},
                        {"error_file", env.error_file},
                        {"host_identity", host_identity()},
                        {"collective_timeout", collective_timeout()},
                        {"meeting", meeting_of(env)},
                        {"batch_shares", batch_shares(env)}});
}

// Whether every rank has a GPU that no other has, as NCCL wants it. Without a plan that goes by
// `own`, which this rank has.
bool ranks_have_own_gpus(const RankEnv& env, Surplus surplus, const AssignedDevice& own) {
  if (!own.ordinal)
    return false;
  if (env.plan.empty())
    return surplus != Surplus::share && surplus != Surplus::cpu;
  return all_own_gpus(plan_from_json(read_small_file(env.plan), env.plan));
}

// Returns one rank's entry in the words of plan.json, whose other members nobody asks for here.
Json entry_of(RankPlan rank) {
  rank.rank = rank.local_rank = rank.host_index = 0;
  Plan alone;
  alone.ranks.push_back(std::move(rank));
  return Json::parse(plan_to_json(alone)).at("ranks").at(0);
}

Json visible_uuids(const RankEnv& env) {
  Json uuids = Json::array();
  if (!env.plan.empty())
    return uuids;
  const SeenMachine seen = see_machine();
  const Host& host = seen.machine.hosts.at(0);
  for (const UsableGpu& gpu : usable_gpus(host, seen.masks).gpus)
    uuids.push_back(uuid_of(host, gpu).value);
  return uuids;
}

std::string device_of(const char* options) {
  const nlohmann::json json = json_argument(options, "muster_rank_device");
  JsonObject object(json, "muster_rank_device", "options");
  RankEnv env = own_rank();
  env.local_rank = object.small_integer_or("local_rank", 0, env.local_rank);
  env.local_world_size = object.small_integer_or("local_world_size", 1, env.local_world_size);
  const Surplus surplus = parse_surplus(object.text_or("surplus", "error"));
  object.finish();
  const auto assigned = assigned_device(env, surplus);
  AssignedDevice device = assigned ? *assigned : assigned_cpu(env, "no rank has a GPU");
  if (env.source.empty()) {  // there is no launcher to speak of
    std::string& reason = device.assignment.reason;
    reason.resize(std::min(reason.size(), reason.find(" (")));
  }
  Json answer;
  answer["ordinal"] = device.ordinal ? Json(device.ordinal->value) : Json(nullptr);
  answer["takes_part"] = assigned.has_value();
  answer["local_world_size"] =
      device.local_world_size ? Json(*device.local_world_size) : Json(nullptr);
  answer["assignment"] = entry_of(device.assignment);
  answer["assignment"]["rank"] = env.rank;
  answer["assignment"]["local_rank"] = env.local_rank;
  answer["assignment"]["host_index"] = device.assignment.host_index;
  answer["all_own_gpus"] = ranks_have_own_gpus(env, surplus, device);
  answer["visible"] = visible_uuids(env);
  return json_text(answer);
}

}  // namespace

}  // namespace muster

extern "C" {

int muster_rank(char** json) {
  return muster::answer_text(json, [] { return muster::facts(); });
}

int muster_rank_device(const char* options, char** json) {
  return muster::answer_text(json, [&] { return muster::device_of(options); });
}

}  // extern "C"
