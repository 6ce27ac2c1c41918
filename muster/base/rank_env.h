// The environment contract between a launcher and a rank: the only thing, with the store, that the
// control plane and the data plane share. The launcher writes it with `to_environment`; a rank
// reads it with `rank_env_from_environment`, whoever the launcher was.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "muster/base/lists.h"

namespace muster {

using Environment = std::map<std::string, std::string>;

// This process's.
Environment own_environment();

struct RankEnv {
  // Who told: "muster", "torchrun", "Open MPI", "PMI", "Slurm", "Kubernetes".
  std::string source{};

  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  bool local_rank_told = true;  // false: the two above say nothing, and neither do the next two
  int group_rank = 0;           // the host's number
  int group_world_size = 1;
  std::string role_name = "default";
  int role_rank = 0;
  int role_world_size = 1;

  std::string master_addr{};  // empty: not told
  int master_port = 0;        // 0: not told

  int restart_count = 0;
  int max_restarts = 0;
  int attempt = 0;  // how often the ranks have been started before, for whatever reason
  // One id for all hosts and attempts of one start of the job; empty: not known.
  std::string launch{};
  std::string run_id = "none";
  std::string error_file{};
  bool use_agent_store = false;

  // Only muster's launcher tells these (empty or -1 under others).
  std::string device{};       // "GPU-<uuid>", "MIG-<uuid>" or "cpu:<slot>"
  std::string plan{};         // path of plan.json
  std::string store{};        // "tcp://host:port" or "unix:path", authenticated
  std::string agent_store{};  // this host's launcher's own, where that tells of generations
  int secret_fd = -1;
  std::string host_id{};
  std::string run_dir{};
  std::string backend = "auto";
  bool simulated = false;
};

// Every variable of torchrun 2.15's contract and muster's own, except CUDA_VISIBLE_DEVICES and
// OMP_NUM_THREADS, which depend on the device and on what the user set.
Environment to_environment(const RankEnv& env);

// Those of a rank's variables that may be others in the job's next generation, to which the process
// comes as another rank: numbers, sizes, addresses, counts, the error file.
Environment generation_variables(const Environment& of_rank);

// `env` as these say it. Throws: invalid_argument for a number that is none.
RankEnv with_generation(RankEnv env, const Environment& variables);

// SLURM_STEP_TASKS_PER_NODE and its like, as one number for each node: "2(x3),1" is 2, 2, 2, 1.
// Nothing for another text, and for more nodes than any cluster has.
std::optional<Ints> slurm_counts(const std::string& text);

// Whether this is a task of srun. A batch script and an interactive shell (salloc's, `srun --pty
// bash`) have SLURM_PROCID too, and are none.
bool inside_srun_step();

// Reads the first source that gives rank and size: torchrun/muster, Open MPI, PMI, Slurm (where
// inside_srun_step()), Kubernetes. PMIx tells no size by variable; the launchers
// that speak it (Open MPI, Slurm) set their own beside it. Nothing when there is none: started
// alone. Throws: invalid_argument when one source contradicts itself (RANK=4 of WORLD_SIZE=4, RANK
// without WORLD_SIZE).
std::optional<RankEnv> rank_env_from_environment();

}  // namespace muster
