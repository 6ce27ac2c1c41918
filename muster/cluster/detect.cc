// Under mpirun or srun each host has one process of muster, which finds its number and the number
// of hosts in the variables that such a launcher sets, and the others by a file that all can name.
#include "muster/cluster/detect.h"

#include <iterator>

#include "muster/base/env.h"
#include "muster/base/env_count.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/rank_env.h"
#include "muster/store/rendezvous_file.h"

namespace muster {

namespace {

// A launcher of the cluster by its name in RankEnv::source, and its command for one process a host.
struct Launcher {
  const char* source;
  const char* one_a_host;
};

constexpr Launcher kLaunchers[] = {{"Open MPI", "mpirun --map-by ppr:1:node"},
                                   {"PMI", "mpiexec -ppn 1"},
                                   {"Slurm", "srun --ntasks-per-node=1"}};

const Launcher* launcher_of(const RankEnv& env) {
  return element_with(kLaunchers, env.source, &Launcher::source);
}

// Somebody who starts muster in a batch script may believe that it uses all nodes. Flags are read
// twice, and this is said once.
void note_unused_nodes() {
  static bool is_said = false;
  const auto nodes = get_env_count("SLURM_JOB_NUM_NODES").value_or(1);
  const auto components = get_env_count("SLURM_HET_SIZE").value_or(1);
  if (is_said || (nodes < 2 && components < 2) || inside_srun_step())
    return;
  is_said = true;
  if (components > 1) {
    log_info("this Slurm job has ",
             components,
             " components, of which this uses one node; to use all of them, start `srun "
             "--het-group=0-",
             components - 1,
             " --ntasks-per-node=1 muster run ...`");
    return;
  }
  log_info("this Slurm job has ",
           nodes,
           " nodes, of which this uses one; to use all of them, start "
           "`srun --ntasks-per-node=1 muster run ...`");
}

// Pods or hosts may be numbered as ranks are, by hand or by a script. The ranks of a launcher are
// told their place on the host as well, and may start jobs of their own.
void note_unused_numbers(const RankEnv& env) {
  static bool is_said = false;
  if (is_said || env.world_size < 2 || env.local_rank_told)
    return;
  is_said = true;
  const auto endpoint =
      cat(get_env("MASTER_ADDR").value_or("HOST"), ":", get_env("MASTER_PORT").value_or("PORT"));
  log_warning("RANK=",
              env.rank,
              " and WORLD_SIZE=",
              env.world_size,
              " are not used: this starts a job of its own; for one job over all of them, give "
              "--nnodes ",
              env.world_size,
              " --node-rank ",
              env.rank,
              " --rdzv-endpoint ",
              printable(endpoint));
}

}  // namespace

// Several processes on one host are the user's ranks, started without knowing that muster starts
// ranks.
bool detect_cluster(ClusterOptions& options) {
  const auto env = rank_env_from_environment();
  const Launcher* const launcher = env ? launcher_of(*env) : nullptr;
  if (launcher == nullptr) {
    if (!env)
      note_unused_nodes();
    else
      note_unused_numbers(*env);
    return false;  // a rank of torchrun's or ours starts a job of its own
  }
  if (env->world_size < 2)
    return false;
  if (env->local_world_size > 1) {
    throw invalid_argument(launcher->source,
                           ": expected one `muster run` a host, which starts the ranks there, got ",
                           env->local_world_size,
                           " on this one (",
                           env->world_size,
                           " in all); start it with ",
                           launcher->one_a_host,
                           ", or start the program itself without `muster run`");
  }
  const auto place = rendezvous_place_of_environment("agents");
  if (!place) {
    throw invalid_argument(
        launcher->source,
        ": expected its processes to share a name by which they can meet, got none; give "
        "--nnodes ",
        env->world_size,
        " --rdzv-endpoint HOST:PORT (an address of the host with rank 0) and "
        "--secret-file");
  }
  options.min_hosts = options.max_hosts = env->world_size;
  options.node_rank = env->rank;
  options.backend = launcher->source;
  options.rendezvous_file = place->path;
  options.one_machine = place->one_host;
  return true;
}

// An indexed job of Kubernetes has one pod a host.
std::optional<int> node_rank_of_environment() {
  const auto env = rank_env_from_environment();
  if (env && env->world_size > 1 && launcher_of(*env) != nullptr)
    return env->rank;
  return get_env_count("JOB_COMPLETION_INDEX");
}

}  // namespace muster
