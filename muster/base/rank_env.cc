// Rank and size are read from the first launcher whose variables give both; all else is read and
// written by the table of rank_env_table.h. A visitor for each direction does it by the member's
// type.
#include "muster/base/rank_env.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <variant>

#include "muster/base/env.h"
#include "muster/base/env_count.h"
#include "muster/base/lookup.h"
#include "muster/base/rank_env_table.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// One launcher's spelling of rank and size; what has an empty name is not told by that launcher.
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
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
    {"Kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "", ""},
};

// What a launcher's store tells.
constexpr Source kGeneration = {"the job's next generation", "RANK", "WORLD_SIZE", "", ""};

// Slurm numbers the steps that it makes itself from here on: a batch script's shell, an interactive
// one.
constexpr int64_t kFirstSpecialSlurmStep = 0xfffffff0;

int env_int(const char* name, int otherwise) {
  return get_env_count(name).value_or(otherwise);
}

std::optional<int> slurm_tasks_on_node(int node) {
  constexpr auto kTasks = "SLURM_STEP_TASKS_PER_NODE";
  const auto told = get_env(kTasks);
  if (!told)
    return std::nullopt;
  const auto counts = slurm_counts(*told);
  if (!counts) {
    throw invalid_argument("environment: expected numbers of tasks as in 2(x3),1, got ",
                           kTasks,
                           "='",
                           printable(*told),
                           "'; correct or unset it");
  }
  return node < std::ssize(*counts) ? std::optional(counts->at(node)) : std::nullopt;
}

void check_range(const Source& source, const char* name, int value, const char* of_name, int of) {
  if (value >= 0 && value < of)
    return;
  throw invalid_argument("environment (",
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
                         "; correct them or unset both");
}

Error half_set(const char* set, const char* missing) {
  return invalid_argument(
      "environment: ", set, " is set but ", missing, " is not; set both or unset both");
}

// Slurm tells the size of each node in one list, and not by a variable of the task.
void read_slurm_nodes(RankEnv& env) {
  env.group_rank = env_int("SLURM_NODEID", 0);
  env.group_world_size = env_int("SLURM_STEP_NUM_NODES", 1);
  const int told = slurm_tasks_on_node(env.group_rank).value_or(0);
  env.local_world_size = std::max(told, env.local_world_size);
}

// The least size of a host that has this local rank.
int size_with(int local_rank) {
  return std::min(local_rank, INT32_MAX - 1) + 1;
}

// Rank and size, and the place on the host, as this launcher tells them; nothing: it tells none.
// Throws: invalid_argument for a contradiction.
std::optional<RankEnv> read(const Source& source) {
  const auto rank = get_env_int(source.rank);
  const auto size = get_env_int(source.world_size);
  if (!rank && !size)
    return std::nullopt;
  if (!rank || !size) {
    // Only torchrun's own names are a clear statement; a half-set foreign pair is no source.
    if (source.rank != kSources[0].rank)
      return std::nullopt;
    throw rank ? half_set("RANK", "WORLD_SIZE") : half_set("WORLD_SIZE", "RANK");
  }
  RankEnv env;
  env.source = source.name;
  env.rank = env_int(source.rank, 0);
  env.world_size = env_int(source.world_size, 1);
  if (env.world_size < 1) {
    throw invalid_argument("environment (",
                           source.name,
                           "): expected ",
                           source.world_size,
                           " >= 1, got ",
                           env.world_size);
  }
  check_range(source, source.rank, env.rank, source.world_size, env.world_size);
  env.local_rank_told = get_env(source.local_rank) || env.world_size == 1;
  env.local_rank = env_int(source.local_rank, 0);
  env.local_world_size = env_int(source.local_world_size, size_with(env.local_rank));
  if (source.name == std::string_view("Slurm"))
    read_slurm_nodes(env);
  const bool tells_size = *source.local_world_size != '\0';
  const char* const size_of_host = tells_size ? source.local_world_size : "the tasks of its host";
  check_range(source, source.local_rank, env.local_rank, size_of_host, env.local_world_size);
  return env;
}

// Sets the member of `env` from the variable of its name; leaves it as it is where that is not set.
struct MemberFromEnvironment {
  RankEnv& env;
  const char* name;

  void operator()(std::monostate /*none*/) const {}
  void operator()(int RankEnv::* number) const { env.*number = env_int(name, env.*number); }
  void operator()(std::string RankEnv::* text) const {
    env.*text = get_env(name).value_or(env.*text);
  }
  void operator()(const RankFlag& flag) const { env.*flag.value = get_env(name) == flag.yes; }
};

// Reads what every launcher spells alike, and what only muster's tells.
void read_common(RankEnv& env) {
  env.role_rank = env.rank;
  env.role_world_size = env.world_size;
  for (const RankVariable& variable : rank_variables()) {
    if ((variable.traits & RankVariable::kPlace) == 0)
      std::visit(MemberFromEnvironment{env, variable.name}, variable.member);
  }
  if (!get_env("MUSTER_ATTEMPT"))
    env.attempt = env.restart_count;
  // MUSTER_LOCAL_RANK is the true one: `--virtual-local-rank` shows torch scripts LOCAL_RANK=0. A
  // program that a rank starts as a job of its own has inherited it.
  env.local_world_size = std::max(env.local_world_size, size_with(env.local_rank));
  env.local_rank_told |= get_env("MUSTER_LOCAL_RANK").has_value();
  if (!env.device.empty())
    env.source = "muster";
}

// Sets the variable of a member of `env`, as a launcher gives it to a rank; leaves it unset where
// there is nothing to tell.
struct MemberToEnvironment {
  const RankEnv& env;
  const RankVariable& variable;
  Environment& variables;

  void operator()(std::monostate /*none*/) const {}
  void operator()(int RankEnv::* number) const {
    if (env.*number >= 0)
      variables[variable.name] = cat(env.*number);
  }
  void operator()(std::string RankEnv::* text) const {
    const bool set_if_empty = (variable.traits & RankVariable::kSetIfEmpty) != 0;
    if (set_if_empty || !(env.*text).empty())
      variables[variable.name] = env.*text;
  }
  void operator()(const RankFlag& flag) const {
    const char* const text = env.*flag.value ? flag.yes : flag.no;
    if (text != nullptr)
      variables[variable.name] = text;
  }
};

// Sets a member of `env` to what another generation's variable says.
struct MemberOfGeneration {
  RankEnv& env;
  const char* name;
  const std::string& told;

  void operator()(int RankEnv::* number) const {
    const auto value = parse_count(told);
    if (!value)
      throw invalid_argument("generation: expected a number in ",
                             name,
                             ", got '",
                             told,
                             "' (rank ",
                             env.rank,
                             "); start the job anew");
    env.*number = *value;
  }
  void operator()(std::string RankEnv::* text) const { env.*text = told; }
  void operator()(const auto& /*never another*/) const {}
};

}  // namespace

// A number stands for one node, or for several: "2(x3)".
std::optional<Ints> slurm_counts(const std::string& text) {
  constexpr size_t kMostNodes = 100'000;
  Ints counts;
  for (const auto& piece : split(text, ',')) {
    const size_t times = std::min(piece.find("(x"), piece.size());
    const bool is_repeated = times < piece.size() && piece.ends_with(')');
    const bool is_whole = is_repeated || times == piece.size();
    const auto count = parse_count(piece.substr(0, times));
    const auto nodes =
        parse_count(is_repeated ? piece.substr(times + 2, piece.size() - times - 3) : "1");
    const bool is_count = count && nodes && is_whole;
    if (!is_count || counts.size() + *nodes > kMostNodes)
      return std::nullopt;
    counts.insert(counts.end(), *nodes, *count);
  }
  return counts;
}

bool inside_srun_step() {
  const auto number = parse_int(get_env("SLURM_STEP_ID").value_or(""));
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
    if (equals == npos || equals == 0)
      continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Environment to_environment(const RankEnv& env) {
  Environment variables = {
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", get_env("TORCH_NCCL_ASYNC_ERROR_HANDLING").value_or("1")},
      {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
  };
  for (const RankVariable& variable : rank_variables())
    std::visit(MemberToEnvironment{env, variable, variables}, variable.member);
  return variables;
}

Environment generation_variables(const Environment& of_rank) {
  Environment part = of_rank;
  std::erase_if(part, [](const auto& variable) {
    return !has_trait(variable.first, RankVariable::kByGeneration);
  });
  return part;
}

RankEnv with_generation(RankEnv env, const Environment& variables) {
  for (const RankVariable& variable : rank_variables()) {
    const std::string* const told = value_at(variables, variable.name);
    if ((variable.traits & RankVariable::kByGeneration) != 0 && told != nullptr)
      std::visit(MemberOfGeneration{env, variable.name, *told}, variable.member);
  }
  check_range(kGeneration, kGeneration.rank, env.rank, kGeneration.world_size, env.world_size);
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
