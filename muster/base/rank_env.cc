#include "muster/base/rank_env.h"

#include <unistd.h>

#include <algorithm>

#include "muster/base/env.h"

namespace muster {

namespace {

// One launcher's spelling of rank and size; a null name is not told by that launcher.
struct Source {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr Source kSources[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
    {"Kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", nullptr, nullptr},
};

// Slurm numbers the steps that it makes itself from here on: a batch script's shell, an interactive
// one.
constexpr int64_t kFirstSpecialSlurmStep = 0xfffffff0;

int env_int(const char* name, int otherwise) {
  if (name == nullptr)
    return otherwise;
  const auto value = get_env_int(name);
  if (value && (*value < INT32_MIN || *value > INT32_MAX)) {
    throw Error(ErrorCode::invalid_argument,
                cat("environment: expected a small integer in ", name, ", got ", *value));
  }
  return static_cast<int>(value.value_or(otherwise));
}

// SLURM_STEP_TASKS_PER_NODE is "2(x3),1": 2 on each of the first three nodes, 1 on the fourth.
std::optional<int> slurm_tasks_on_node(int node) {
  for (const std::string& piece : split(get_env("SLURM_STEP_TASKS_PER_NODE").value_or(""), ',')) {
    const size_t times = piece.find("(x");
    const auto tasks = parse_int(piece.substr(0, times));
    const auto nodes = times == std::string::npos
                           ? std::optional<int64_t>(1)
                           : parse_int(piece.substr(times + 2, piece.size() - times - 3));
    if (!tasks || !nodes)
      return std::nullopt;
    if (node < *nodes)
      return static_cast<int>(*tasks);
    node -= static_cast<int>(*nodes);
  }
  return std::nullopt;
}

void check_range(const Source& source, const char* name, int value, const char* of_name, int of) {
  if (value >= 0 && value < of)
    return;
  throw Error(ErrorCode::invalid_argument,
              cat("environment (",
                  source.name,
                  "): expected 0 <= ",
                  name,
                  " < ",
                  of_name,
                  ", got ",
                  name,
                  "=",
                  value,
                  " and ",
                  of_name,
                  "=",
                  of,
                  "; correct them or unset both"));
}

std::optional<RankEnv> read(const Source& source) {
  const auto rank = get_env_int(source.rank);
  const auto size = get_env_int(source.world_size);
  if (!rank && !size)
    return std::nullopt;
  if (!rank || !size) {
    // Only torchrun's own names are a clear statement; a half-set foreign pair is no source.
    if (source.rank != kSources[0].rank)
      return std::nullopt;
    throw Error(ErrorCode::invalid_argument,
                cat("environment: ",
                    rank ? "RANK" : "WORLD_SIZE",
                    " is set but ",
                    rank ? "WORLD_SIZE" : "RANK",
                    " is not; set both or unset both"));
  }
  RankEnv env;
  env.source = source.name;
  env.rank = env_int(source.rank, 0);
  env.world_size = env_int(source.world_size, 1);
  if (env.world_size < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("environment (",
                    source.name,
                    "): expected ",
                    source.world_size,
                    " >= 1, got ",
                    env.world_size));
  }
  check_range(source, source.rank, env.rank, source.world_size, env.world_size);
  const bool told = source.local_rank != nullptr && get_env(source.local_rank).has_value();
  env.local_rank_told = told || env.world_size == 1;
  env.local_rank = env_int(source.local_rank, 0);
  env.local_world_size = env_int(source.local_world_size, std::max(env.local_rank + 1, 1));
  if (source.name == std::string_view("Slurm")) {
    env.group_rank = env_int("SLURM_NODEID", 0);
    env.group_world_size = env_int("SLURM_STEP_NUM_NODES", 1);
    env.local_world_size = slurm_tasks_on_node(env.group_rank).value_or(env.local_world_size);
  }
  if (source.local_rank != nullptr && source.local_world_size != nullptr) {
    check_range(
        source, source.local_rank, env.local_rank, source.local_world_size, env.local_world_size);
  }
  return env;
}

void read_common(RankEnv& env) {
  env.group_rank = env_int("GROUP_RANK", env.group_rank);
  env.group_world_size = env_int("GROUP_WORLD_SIZE", env.group_world_size);
  env.role_name = get_env("ROLE_NAME").value_or("default");
  env.role_rank = env_int("ROLE_RANK", env.rank);
  env.role_world_size = env_int("ROLE_WORLD_SIZE", env.world_size);
  env.master_addr = get_env("MASTER_ADDR").value_or("");
  env.master_port = env_int("MASTER_PORT", 0);
  env.restart_count = env_int("TORCHELASTIC_RESTART_COUNT", 0);
  env.max_restarts = env_int("TORCHELASTIC_MAX_RESTARTS", 0);
  env.attempt = env_int("MUSTER_ATTEMPT", env.restart_count);
  env.launch = get_env("MUSTER_LAUNCH").value_or("");
  env.run_id = get_env("TORCHELASTIC_RUN_ID").value_or("none");
  env.error_file = get_env("TORCHELASTIC_ERROR_FILE").value_or("");
  env.use_agent_store = get_env("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.device = get_env("MUSTER_DEVICE").value_or("");
  env.plan = get_env("MUSTER_PLAN").value_or("");
  env.store = get_env("MUSTER_STORE").value_or("");
  env.agent_store = get_env("MUSTER_AGENT_STORE").value_or("");
  env.secret_fd = env_int("MUSTER_SECRET_FD", -1);
  env.host_id = get_env("MUSTER_HOST_ID").value_or("");
  env.run_dir = get_env("MUSTER_RUN_DIR").value_or("");
  env.backend = get_env("MUSTER_BACKEND").value_or("auto");
  env.simulated = get_env("MUSTER_SIMULATED") == "1";
  // `--virtual-local-rank` shows torch scripts LOCAL_RANK=0; the true one is here.
  env.local_rank_told |= get_env("MUSTER_LOCAL_RANK").has_value();
  env.local_rank = env_int("MUSTER_LOCAL_RANK", env.local_rank);
  if (!env.device.empty())
    env.source = "muster";
}

// What a rank's next generation may change, by the variable that says it.
struct GenerationNumber {
  const char* name;
  int RankEnv::* value;
};
struct GenerationText {
  const char* name;
  std::string RankEnv::* value;
};
constexpr GenerationNumber kGenerationNumbers[] = {
    {"RANK", &RankEnv::rank},
    {"WORLD_SIZE", &RankEnv::world_size},
    {"LOCAL_WORLD_SIZE", &RankEnv::local_world_size},
    {"GROUP_RANK", &RankEnv::group_rank},
    {"GROUP_WORLD_SIZE", &RankEnv::group_world_size},
    {"ROLE_RANK", &RankEnv::role_rank},
    {"ROLE_WORLD_SIZE", &RankEnv::role_world_size},
    {"MASTER_PORT", &RankEnv::master_port},
    {"TORCHELASTIC_RESTART_COUNT", &RankEnv::restart_count},
    {"MUSTER_ATTEMPT", &RankEnv::attempt},
};
constexpr GenerationText kGenerationTexts[] = {
    {"MASTER_ADDR", &RankEnv::master_addr},
    {"MUSTER_STORE", &RankEnv::store},
    {"TORCHELASTIC_ERROR_FILE", &RankEnv::error_file},
};

void put(Environment& vars, const char* name, const std::string& value) {
  if (!value.empty())
    vars[name] = value;
}

}  // namespace

bool inside_srun_step() {
  const auto step = get_env("SLURM_STEP_ID");
  const auto number = step ? parse_int(*step) : std::nullopt;
  const auto tasks = get_env("SLURM_STEP_NUM_TASKS");
  if (!number || *number >= kFirstSpecialSlurmStep || !tasks)
    return false;
  const bool is_shell_at_terminal = *tasks == "1" && get_env("SLURM_PTY_PORT").has_value();
  return !is_shell_at_terminal;
}

Environment own_environment() {
  Environment variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0)
      continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Environment to_environment(const RankEnv& env) {
  Environment vars = {
      {"RANK", cat(env.rank)},
      {"WORLD_SIZE", cat(env.world_size)},
      {"LOCAL_RANK", cat(env.local_rank)},
      {"LOCAL_WORLD_SIZE", cat(env.local_world_size)},
      {"GROUP_RANK", cat(env.group_rank)},
      {"GROUP_WORLD_SIZE", cat(env.group_world_size)},
      {"ROLE_NAME", env.role_name},
      {"ROLE_RANK", cat(env.role_rank)},
      {"ROLE_WORLD_SIZE", cat(env.role_world_size)},
      {"MASTER_ADDR", env.master_addr},
      {"MASTER_PORT", cat(env.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", cat(env.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", cat(env.max_restarts)},
      {"TORCHELASTIC_RUN_ID", env.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", env.use_agent_store ? "True" : "False"},
      {"TORCHELASTIC_ERROR_FILE", env.error_file},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", get_env("TORCH_NCCL_ASYNC_ERROR_HANDLING").value_or("1")},
      {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
      {"MUSTER_LOCAL_RANK", cat(env.local_rank)},
      {"MUSTER_ATTEMPT", cat(env.attempt)},
      {"MUSTER_BACKEND", env.backend},
  };
  put(vars, "MUSTER_LAUNCH", env.launch);
  put(vars, "MUSTER_DEVICE", env.device);
  put(vars, "MUSTER_PLAN", env.plan);
  put(vars, "MUSTER_STORE", env.store);
  put(vars, "MUSTER_AGENT_STORE", env.agent_store);
  put(vars, "MUSTER_HOST_ID", env.host_id);
  put(vars, "MUSTER_RUN_DIR", env.run_dir);
  if (env.secret_fd >= 0)
    vars["MUSTER_SECRET_FD"] = cat(env.secret_fd);
  if (env.simulated)
    vars["MUSTER_SIMULATED"] = "1";
  return vars;
}

Environment generation_variables(const Environment& of_rank) {
  Environment part;
  const auto take = [&](const char* name) {
    const auto found = of_rank.find(name);
    if (found != of_rank.end())
      part.insert(*found);
  };
  for (const GenerationNumber& number : kGenerationNumbers)
    take(number.name);
  for (const GenerationText& text : kGenerationTexts)
    take(text.name);
  return part;
}

RankEnv with_generation(RankEnv env, const Environment& variables) {
  for (const GenerationNumber& number : kGenerationNumbers) {
    const auto found = variables.find(number.name);
    if (found == variables.end())
      continue;
    const auto value = parse_int(found->second);
    if (!value || *value < 0 || *value > INT32_MAX)
      throw Error(ErrorCode::invalid_argument,
                  cat("generation: expected a number in ",
                      number.name,
                      ", got '",
                      found->second,
                      "' (rank ",
                      env.rank,
                      "); start the job anew"));
    env.*number.value = static_cast<int>(*value);
  }
  for (const GenerationText& text : kGenerationTexts)
    if (const auto found = variables.find(text.name); found != variables.end())
      env.*text.value = found->second;
  return env;
}

std::optional<RankEnv> rank_env_from_environment() {
  for (const Source& source : kSources) {
    if (source.name == std::string_view("Slurm") && !inside_srun_step())
      continue;
    if (auto env = read(source)) {
      read_common(*env);
      return env;
    }
  }
  return std::nullopt;
}

}  // namespace muster
