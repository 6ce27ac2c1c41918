// An agent that starts by ssh reads one line from its standard input: the job's secret, and JSON of
// all that its launcher knows. The secret never stands in a command line or an environment, and no
// copy of the line stays behind in memory.
#include "muster/cluster/agent_spec.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <nlohmann/json.hpp>

#include "muster/base/byte_text.h"
#include "muster/base/rank_env_table.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "muster.agent/3";
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
  return std::ranges::any_of(kSentPrefixes, begins_name) ||
         std::ranges::find(kSentNames, name) != std::end(kSentNames);
}

// Whether a shell takes the name: functions that bash exports have others.
bool is_a_name(const std::string& name) {
  const auto word = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name, word);
}

// What the agent's launcher needs; what only the coordinator needs stays here.
Json launch_to_json(const LaunchOptions& options) {
  Json programs = Json::array();
  for (const ProgramRanks& more : options.more_programs)
    programs.push_back({{"argv", more.argv}, {"num_ranks", more.num_ranks}, {"role", more.role}});
  const Request& request = options.request;
  return {{"argv", options.argv},
          {"more_programs", programs},
          {"cpu_slots", options.cpu_slots},
          {"lease", options.lease},
          {"looks_at_gpus", options.looks_at_gpus},
          {"run_id", options.run_id},
          {"role", options.role},
          {"max_restarts", options.max_restarts},
          {"replaces", options.failure_policy == FailurePolicy::replace},
          {"rejoin_milliseconds", options.rejoin_within.count()},
          {"shutdown_milliseconds", options.shutdown_timeout.count()},
          {"stopped_milliseconds",
           options.stopped_timeout ? Json(options.stopped_timeout->count()) : Json(nullptr)},
          {"stop_signals", options.stop_signals},
          {"run_dir", options.run_dir},
          {"log_dir", options.log_dir},
          {"redirects", options.redirects},
          {"tee", options.tee},
          {"local_ranks_filter", options.local_ranks_filter},
          {"line_prefix", options.line_prefix},
          {"extra_env", options.extra_env},
          {"work_dir", options.work_dir},
          {"json", options.json},
          {"quiet", options.quiet},
          {"virtual_local_rank", options.virtual_local_rank},
          // What has to be asked of the machine depends on these; the plan is made elsewhere.
          {"cpu_only", request.cpu_only},
          {"gpus", request.gpus.text},
          {"policy", request.policy},
          {"numa_binding", to_string(request.numa_binding)}};
}

// Throws: nlohmann's exceptions.
template <class T>
void read(const Json& json, const char* name, T& value) {
  value = json.at(name).get<T>();
}

LaunchOptions launch_from(const Json& json) {
  LaunchOptions options;
  read(json, "argv", options.argv);
  for (const Json& more : json.at("more_programs")) {
    options.more_programs.push_back({.argv = more.at("argv").get<std::vector<std::string>>(),
                                     .num_ranks = more.at("num_ranks").get<int>(),
                                     .role = more.at("role").get<std::string>()});
  }
  read(json, "cpu_slots", options.cpu_slots);
  read(json, "lease", options.lease);
  read(json, "looks_at_gpus", options.looks_at_gpus);
  read(json, "run_id", options.run_id);
  read(json, "role", options.role);
  read(json, "max_restarts", options.max_restarts);
  if (json.at("replaces").get<bool>())
    options.failure_policy = FailurePolicy::replace;
  options.rejoin_within = std::chrono::milliseconds(json.at("rejoin_milliseconds").get<int64_t>());
  options.shutdown_timeout =
      std::chrono::milliseconds(json.at("shutdown_milliseconds").get<int64_t>());
  if (const Json& stopped = json.at("stopped_milliseconds"); !stopped.is_null())
    options.stopped_timeout = std::chrono::milliseconds(stopped.get<int64_t>());
  read(json, "stop_signals", options.stop_signals);
  read(json, "run_dir", options.run_dir);
  read(json, "log_dir", options.log_dir);
  read(json, "redirects", options.redirects);
  read(json, "tee", options.tee);
  read(json, "local_ranks_filter", options.local_ranks_filter);
  read(json, "line_prefix", options.line_prefix);
  read(json, "extra_env", options.extra_env);
  read(json, "work_dir", options.work_dir);
  read(json, "json", options.json);
  read(json, "quiet", options.quiet);
  read(json, "virtual_local_rank", options.virtual_local_rank);
  read(json, "cpu_only", options.request.cpu_only);
  options.request.gpus = json.at("gpus").get<std::string>();
  read(json, "policy", options.request.policy);
  options.request.numa_binding = parse_numa_binding(json.at("numa_binding").get<std::string>());
  return options;
}

Json cluster_to_json(const ClusterOptions& cluster) {
  return {{"min_hosts", cluster.min_hosts},
          {"max_hosts", cluster.max_hosts},
          {"node_rank", cluster.node_rank ? Json(*cluster.node_rank) : Json(nullptr)},
          {"endpoint", cluster.endpoint},
          {"host_name", cluster.host_name},
          {"join_milliseconds", cluster.join_timeout.count()},
          {"silence_milliseconds", cluster.silence.limit().count()}};
}

ClusterOptions cluster_from(const Json& json) {
  ClusterOptions cluster{.backend = "remote", .remote = true};
  read(json, "min_hosts", cluster.min_hosts);
  read(json, "max_hosts", cluster.max_hosts);
  if (!json.at("node_rank").is_null())
    cluster.node_rank = json.at("node_rank").get<int>();
  read(json, "endpoint", cluster.endpoint);
  read(json, "host_name", cluster.host_name);
  cluster.join_timeout = std::chrono::milliseconds(json.at("join_milliseconds").get<int64_t>());
  cluster.silence =
      Silence(std::chrono::milliseconds(json.at("silence_milliseconds").get<int64_t>()));
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

std::string to_line(const AgentSpec& spec) {
  Json json = {{"schema", kSchema},
               {"launch", launch_to_json(spec.launch)},
               {"nproc",
                spec.launch.request.nproc_per_node ? Json(*spec.launch.request.nproc_per_node)
                                                   : Json(nullptr)},
               {"cluster", cluster_to_json(spec.cluster)},
               {"environment", spec.environment},
               {"folder", spec.folder}};
  change_texts(json, [](const std::string& text) { return text_of_bytes(text); });
  const std::string body = json.dump(-1, ' ', true);
  std::string digits = spec.cluster.secret.hex();
  std::string line;
  // It never grows, so that no copy of it stays behind.
  line.reserve(digits.size() + body.size() + 2);
  line.append(digits).append(" ").append(body).append("\n");
  OPENSSL_cleanse(digits.data(), digits.size());
  return line;
}

AgentSpec agent_spec_from(std::string_view line) {
  const size_t space = std::min(line.find(' '), line.size());
  try {
    Json json = Json::parse(line.substr(space));
    change_texts(json, [](const std::string& text) { return bytes_of_text(text, "agent"); });
    if (json.at("schema") != kSchema)
      throw Error(ErrorCode::invalid_argument, "another version");
    AgentSpec spec{.launch = launch_from(json.at("launch")),
                   .cluster = cluster_from(json.at("cluster")),
                   .environment = json.at("environment").get<Environment>(),
                   .folder = json.at("folder").get<std::string>()};
    if (!json.at("nproc").is_null())
      spec.launch.request.nproc_per_node = json.at("nproc").get<int>();
    spec.cluster.secret = Secret::from_hex(line.substr(0, space));
    return spec;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid_argument,
                cat("agent: expected its spec as a line of JSON, got ",
                    error.what(),
                    "; it is `muster run --hosts` that starts agents, with the same version on "
                    "every host"));
  }
}

Environment environment_to_send(const Environment& own) {
  Environment sent;
  for (const auto& [name, value] : own) {
    const bool wanted = steers_programs(name) && !has_trait(name, RankVariable::kStaysOnHost);
    if (wanted && is_a_name(name))
      sent.emplace(name, value);
  }
  return sent;
}

}  // namespace muster
