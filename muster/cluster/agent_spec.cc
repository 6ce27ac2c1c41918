// An agent that starts by ssh reads one line from its standard input: the job's secret, and JSON of
// all that its launcher knows. The secret never stands in a command line or an environment, and no
// copy of the line stays behind in memory.
#include "muster/cluster/agent_spec.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/byte_text.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_words.h"
#include "muster/base/rank_env_table.h"
#include "muster/base/strings.h"
#include "muster/launch/check_launch.h"
#include "muster/launch/json_members.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto kSchema = "muster.agent/3";
// Variables that steer programs are the same on all hosts; what stays here, rank_env_table.h says.
constexpr const char* kSentPrefixes[] = {"NCCL_",
                                         "GLOO_",
                                         "UCX_",
                                         "FI_",
                                         "TORCH_",
                                         "PYTORCH_",
                                         "PYTHON",
                                         "CUDA_",
                                         "OMP_",
                                         "KMP_",
                                         "MKL_",
                                         "MUSTER_",
                                         "PET_",
                                         "HF_",
                                         "WANDB_",
                                         "LC_",
                                         "XLA_",
                                         "TRITON_"};
constexpr const char* kSentNames[] = {
    "PATH", "LD_LIBRARY_PATH", "LANG", "VIRTUAL_ENV", "CONDA_PREFIX", "TZ"};

// Whether the variable steers programs, on whatever host.
bool steers_programs(const std::string& name) {
  const auto begins_name = [&](const char* prefix) {
    return name.starts_with(prefix);
  };
  return any_of(kSentPrefixes, begins_name) || contains(kSentNames, name);
}

// The members of the launcher's options that are sent as they are. What only the coordinator needs
// stays here.
constexpr auto kLaunchMembers = [](auto& options, const auto& visit) {
  visit("argv", options.argv);
  visit("cpu_slots", options.cpu_slots);
  visit("lease", options.lease);
  visit("looks_at_gpus", options.looks_at_gpus);
  visit("run_id", options.run_id);
  visit("role", options.role);
  visit("max_restarts", options.max_restarts);
  visit("rejoin_milliseconds", options.rejoin_within);
  visit("shutdown_milliseconds", options.shutdown_timeout);
  visit("stopped_milliseconds", options.stopped_timeout);
  visit("stop_signals", options.stop_signals);
  visit("run_dir", options.run_dir);
  visit("log_dir", options.log_dir);
  visit("redirects", options.redirects);
  visit("tee", options.tee);
  visit("local_ranks_filter", options.local_ranks_filter);
  visit("line_prefix", options.line_prefix);
  visit("extra_env", options.extra_env);
  visit("work_dir", options.work_dir);
  visit("json", options.json);
  visit("quiet", options.quiet);
  visit("virtual_local_rank", options.virtual_local_rank);
  // The agent asks its machine for what these two need; the plan is made elsewhere.
  visit("cpu_only", options.request.cpu_only);
  visit("policy", options.request.policy);
};

constexpr auto kProgramMembers = [](auto& program, const auto& visit) {
  visit("argv", program.argv);
  visit("num_ranks", program.num_ranks);
  visit("role", program.role);
};

constexpr auto kClusterMembers = [](auto& cluster, const auto& visit) {
  visit("min_hosts", cluster.min_hosts);
  visit("max_hosts", cluster.max_hosts);
  visit("node_rank", cluster.node_rank);
  visit("endpoint", cluster.endpoint);
  visit("host_name", cluster.host_name);
  visit("join_milliseconds", cluster.join_timeout);
};

// Members that are another type in JSON follow kLaunchMembers.
Json launch_to_json(const LaunchOptions& options) {
  Json json = members_to_json(options, kLaunchMembers);
  json["replaces"] = options.failure_policy == FailurePolicy::replace;
  json["gpus"] = options.request.gpus.text;
  json["numa_binding"] = to_string(options.request.numa_binding);
  json["more_programs"] = Json::array();
  for (const ProgramRanks& more : options.more_programs) {
    json["more_programs"].push_back(members_to_json(more, kProgramMembers));
  }
  return json;
}

LaunchOptions launch_from(const Json& json) {
  LaunchOptions options;
  members_from_json(json, options, kLaunchMembers);
  if (json.at("replaces").get<bool>())
    options.failure_policy = FailurePolicy::replace;
  options.request.gpus = json.at("gpus").get<std::string>();
  options.request.numa_binding = parse_numa_binding(json.at("numa_binding").get<std::string>());
  for (const Json& more : json.at("more_programs")) {
    ProgramRanks& program = options.more_programs.emplace_back();
    members_from_json(more, program, kProgramMembers);
  }
  return options;
}

Json cluster_to_json(const ClusterOptions& cluster) {
  Json json = members_to_json(cluster, kClusterMembers);
  json["silence_milliseconds"] = cluster.silence.limit().count();
  return json;
}

// The agent of a launcher serves nothing, whatever backend its launcher has.
ClusterOptions cluster_from(const Json& json) {
  ClusterOptions cluster{.backend = "remote", .remote = true};
  members_from_json(json, cluster, kClusterMembers);
  cluster.silence = Silence(milliseconds(json.at("silence_milliseconds").get<int64_t>()));
  return cluster;
}

// Changes every text of `json`, names of members too. Arguments, variables and paths are bytes and
// perhaps no UTF-8, which JSON must be.
void change_texts(Json& json, const std::function<std::string(const std::string&)>& change) {
  if (json.is_string())
    json = change(json.get_ref<const std::string&>());
  if (json.is_object()) {
    Json changed = Json::object();
    for (auto& [name, value] : json.items()) {
      change_texts(value, change);
      changed[change(name)] = std::move(value);
    }
    json = std::move(changed);
  }
  if (json.is_array()) {
    for (Json& value : json)
      change_texts(value, change);
  }
}

}  // namespace

// The digits of the secret stand before the JSON, so that no parser copies them.
std::string to_line(const AgentSpec& spec) {
  Json json = {{"schema", kSchema},
               {"launch", launch_to_json(spec.launch)},
               {"nproc", member_json(spec.launch.request.nproc_per_node)},
               {"cluster", cluster_to_json(spec.cluster)},
               {"environment", spec.environment},
               {"folder", spec.folder}};
  change_texts(json, [](const std::string& text) { return text_of_bytes(text); });
  const auto body = json.dump(-1, ' ', true);
  std::string digits = spec.cluster.secret.hex();
  std::string line;
  // It never grows, so that no copy of it stays behind.
  line.reserve(digits.size() + body.size() + 2);
  line.append(digits).append(" ").append(body).append("\n");
  OPENSSL_cleanse(digits.data(), digits.size());
  return line;
}

// Throws: invalid_argument for a line that no launcher of this version wrote.
AgentSpec agent_spec_from(std::string_view line) {
  const size_t space = std::min(line.find(' '), line.size());
  try {
    check_json_depth(line.substr(space), "agent");
    Json json = Json::parse(line.substr(space));
    change_texts(json, [](const std::string& text) { return bytes_of_text(text, "agent"); });
    if (json.at("schema") != kSchema)
      throw invalid_argument("another version");
    AgentSpec spec{.launch = launch_from(json.at("launch")),
                   .cluster = cluster_from(json.at("cluster")),
                   .environment = json.at("environment").get<Environment>(),
                   .folder = json.at("folder").get<std::string>()};
    take_member(json.at("nproc"), spec.launch.request.nproc_per_node);
    spec.cluster.secret = Secret::from_hex(line.substr(0, space));
    return spec;
  } catch (const nlohmann::json::exception& error) {
    throw invalid_argument(
        "agent: expected its spec as a line of JSON, got ",
        json_words(error.what()),
        "; it is `muster run --hosts` that starts agents, with the same version on "
        "every host");
  }
}

// A user's own secrets have names that nobody knows, so only what is known to be needed is sent. A
// shell takes no function that bash exports, whose name is another than a variable's.
Environment environment_to_send(const Environment& own) {
  Environment sent;
  for (const auto& [name, value] : own) {
    const bool wanted = steers_programs(name) && !has_trait(name, RankVariable::kStaysOnHost);
    if (wanted && is_variable_name(name))
      sent.emplace(name, value);
  }
  return sent;
}

}  // namespace muster
