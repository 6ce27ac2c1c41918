// One row a variable. docs/design/rank.md describes the same variables to people, in the same two
// blocks; the test docs.rank_environment compares both.
#include "muster/base/rank_env_table.h"

#include "muster/base/contains.h"
#include "muster/base/failure_policy.h"

namespace muster {

namespace {

using enum RankVariable::Trait;

constexpr RankVariable kRankVariables[] = {
    // torchrun's contract
    {"RANK", &RankEnv::rank, kPlace | kByGeneration | kErased},
    {"WORLD_SIZE", &RankEnv::world_size, kPlace | kByGeneration | kErased},
    {"LOCAL_RANK", &RankEnv::local_rank, kPlace | kErased},
    {"LOCAL_WORLD_SIZE", &RankEnv::local_world_size, kPlace | kByGeneration | kErased},
    {"GROUP_RANK", &RankEnv::group_rank, kByGeneration | kErased},
    {"GROUP_WORLD_SIZE", &RankEnv::group_world_size, kByGeneration | kErased},
    {"ROLE_NAME", &RankEnv::role_name, kSetIfEmpty | kErased},
    {"ROLE_RANK", &RankEnv::role_rank, kByGeneration | kErased},
    {"ROLE_WORLD_SIZE", &RankEnv::role_world_size, kByGeneration | kErased},
    {"MASTER_ADDR", &RankEnv::master_addr, kSetIfEmpty | kByGeneration | kErased},
    {"MASTER_PORT", &RankEnv::master_port, kByGeneration | kErased},
    {"TORCHELASTIC_RESTART_COUNT", &RankEnv::restart_count, kByGeneration | kErased},
    {"TORCHELASTIC_MAX_RESTARTS", &RankEnv::max_restarts, kErased},
    {"TORCHELASTIC_RUN_ID", &RankEnv::run_id, kSetIfEmpty | kErased},
    {"TORCHELASTIC_ERROR_FILE", &RankEnv::error_file, kSetIfEmpty | kByGeneration | kErased},
    {"TORCHELASTIC_USE_AGENT_STORE", RankFlag{&RankEnv::use_agent_store, "True", "False"}, kErased},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", {}, kErased},
    // These six steer the program and may be the user's own, so the jobs inside get them too.
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", {}, 0},
    {"OMP_NUM_THREADS", {}, 0},
    {"PYTHONFAULTHANDLER", {}, 0},
    {"CUDA_DEVICE_ORDER", {}, 0},
    {"GLOO_SOCKET_IFNAME", {}, 0},
    {"NCCL_SOCKET_IFNAME", {}, 0},
    // A job inside a rank has the rank's GPUs and no others.
    {"CUDA_VISIBLE_DEVICES", {}, kStaysOnHost},
    {"ROCR_VISIBLE_DEVICES", {}, kStaysOnHost},

    // muster's own
    {"MUSTER_DEVICE", &RankEnv::device, kErased},
    {"MUSTER_PLAN", &RankEnv::plan, kErased},
    {"MUSTER_STORE", &RankEnv::store, kByGeneration | kErased | kStaysOnHost},
    {"MUSTER_SECRET_FD", &RankEnv::secret_fd, kErased | kStaysOnHost},
    {"MUSTER_SECRET_FILE", {}, kErased | kStaysOnHost},
    {"MUSTER_AGENT_STORE", &RankEnv::agent_store, kErased | kStaysOnHost},
    {"MUSTER_MARK", {}, kErased},
    {"MUSTER_RUN_DIR", &RankEnv::run_dir, kErased},
    {"MUSTER_LOCAL_RANK", &RankEnv::local_rank, kErased},
    {"MUSTER_ATTEMPT", &RankEnv::attempt, kByGeneration | kErased},
    {"MUSTER_LAUNCH", &RankEnv::launch, kErased},
    {"MUSTER_BACKEND", &RankEnv::backend, kSetIfEmpty},
    {"MUSTER_SIMULATED", RankFlag{&RankEnv::simulated, "1", nullptr}, kErased},
    {kFailurePolicyVariable, {}, kErased},
    {"MUSTER_LEASE_FD", {}, kErased | kStaysOnHost},
    {"MUSTER_TTY", {}, kErased | kStaysOnHost},
    {"MUSTER_CARD", {}, kErased},
    {"MUSTER_HOST_ID", &RankEnv::host_id, kStaysOnHost},
    // Each names the process that it is for, and others ignore it.
    {"MUSTER_RUN_CALLS", {}, 0},
    {"MUSTER_TASK_ORDER", {}, 0},
    // A run of tasks finds the processes of its tasks by these, also behind a launcher.
    {"MUSTER_TASK", {}, kErasedByTasks},
    {"MUSTER_TASK_DIR", {}, kErasedByTasks},
    // A run of tasks has used up these two itself.
    {"MUSTER_GPUS", {}, kErasedByTasks},
    {"MUSTER_INVENTORY", {}, kErasedByTasks},
    {"MUSTER_RUNTIME_DIR", {}, kStaysOnHost},
};

void erase_with(unsigned traits, Environment& variables) {
  for (const RankVariable& variable : kRankVariables) {
    if ((variable.traits & traits) != 0)
      variables.erase(variable.name);
  }
}

}  // namespace

std::span<const RankVariable> rank_variables() {
  return kRankVariables;
}

bool has_trait(std::string_view name, RankVariable::Trait trait) {
  return any_of(kRankVariables, [&](const RankVariable& variable) {
    return variable.name == name && (variable.traits & trait) != 0;
  });
}

void erase_outer_rank(Environment& variables) {
  erase_with(kErased, variables);
}

void erase_outer_task(Environment& variables) {
  erase_with(kErased | kErasedByTasks, variables);
}

}  // namespace muster
