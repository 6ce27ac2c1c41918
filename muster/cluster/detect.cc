#include "muster/cluster/detect.h"

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/store/meeting_file.h"

namespace muster {

namespace {

// The tasks of a job as its launcher counts them.
struct Tasks {
  const char* launcher = "";
  const char* one_a_host = "";  // how to ask for that
  int rank = 0;
  int count = 1;
  int here = 1;
};

int number(const char* name, int otherwise) {
  return static_cast<int>(get_env_int(name).value_or(otherwise));
}

// An srun step; the batch script itself has SLURM_PROCID too, and is none.
bool in_srun_step() {
  const auto step = get_env("SLURM_STEP_ID");
  return step && parse_int(*step) && get_env("SLURM_STEP_NUM_TASKS");
}

std::optional<Tasks> tasks_of_environment() {
  if (get_env("OMPI_COMM_WORLD_SIZE")) {
    return Tasks{"mpirun", "mpirun --map-by ppr:1:node", number("OMPI_COMM_WORLD_RANK", 0),
                 number("OMPI_COMM_WORLD_SIZE", 1), number("OMPI_COMM_WORLD_LOCAL_SIZE", 1)};
  }
  if (get_env("PMI_SIZE") && get_env("MPI_LOCALNRANKS")) {
    return Tasks{"mpiexec", "mpiexec -ppn 1", number("PMI_RANK", 0), number("PMI_SIZE", 1),
                 number("MPI_LOCALNRANKS", 1)};
  }
  if (in_srun_step()) {
    const int count = number("SLURM_STEP_NUM_TASKS", 1);
    const int nodes = number("SLURM_STEP_NUM_NODES", 1);
    return Tasks{"srun", "srun --ntasks-per-node=1", number("SLURM_PROCID", 0), count, count > nodes ? 2 : 1};
  }
  return std::nullopt;
}

void note_unused_nodes() {
  const int nodes = number("SLURM_JOB_NUM_NODES", 1);
  if (nodes < 2 || in_srun_step()) return;
  log(LogLevel::info, cat("this Slurm job has ", nodes,
                          " nodes, of which this uses one; to use all of them, start "
                          "`srun --ntasks-per-node=1 muster run ...`"));
}

}  // namespace

bool detect_cluster(ClusterOptions& options) {
  if (get_env("RANK")) return false;  // a rank of another launcher starts a job of its own
  note_unused_nodes();
  const auto tasks = tasks_of_environment();
  if (!tasks || tasks->count < 2) return false;
  if (tasks->here > 1) {
    throw Error(ErrorCode::invalid_argument,
                cat(tasks->launcher,
                    ": expected one `muster run` a host, which starts the ranks there, got several (",
                    tasks->count, " in all); start it with ", tasks->one_a_host,
                    ", or start the program itself without `muster run`"));
  }
  const auto place = meeting_place_of_environment("agents");
  if (!place) {
    throw Error(ErrorCode::invalid_argument,
                cat(tasks->launcher,
                    ": expected its processes to share a name by which they can meet, got none; give "
                    "--nnodes ",
                    tasks->count,
                    " --rdzv-endpoint HOST:PORT (an address of the host with rank 0) and "
                    "--secret-file"));
  }
  options.min_hosts = options.max_hosts = tasks->count;
  options.node_rank = tasks->rank;
  options.backend = tasks->launcher;
  options.meeting_file = place->path;
  options.one_machine = place->one_host;
  return true;
}

std::optional<int> node_rank_of_environment() {
  if (const auto tasks = tasks_of_environment(); tasks && tasks->count > 1) return tasks->rank;
  if (const auto index = get_env_int("JOB_COMPLETION_INDEX")) return static_cast<int>(*index);
  return std::nullopt;
}

}  // namespace muster
