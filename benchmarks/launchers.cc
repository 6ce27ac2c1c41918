#include "benchmarks/launchers.h"

#include "muster/base/strings.h"

namespace muster::bench {

namespace {

constexpr int kMostForOpenMpi = 32;

}  // namespace

std::vector<Launcher> launchers(const LauncherOptions& options) {
  const std::string ranks = cat(options.ranks);
  // CPU slots, so that looking for GPUs is no part of it: that is measured apart.
  Launcher muster{
      .name = "muster run",
      .command =
          {options.muster, "run", "--nproc-per-node", "cpu", "--cpu-slots", ranks, NOOP_PROGRAM},
      .runs = options.runs};
  Launcher plain{.name = "fork + exec",
                 .command = {NOOP_PROGRAM},
                 .processes = options.ranks,
                 .runs = options.runs};
  Launcher mpich{.name = "mpiexec.hydra",
                 .command = {"mpiexec.hydra", "-n", ranks, NOOP_PROGRAM},
                 .runs = options.runs};
  if (!works({"mpiexec.hydra", "--version"}))
    mpich.absent = "mpiexec.hydra is not installed (Debian: mpich)";

  Launcher open_mpi{
      .name = "Open MPI",
      .command =
          {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", ranks, NOOP_PROGRAM},
      .runs = options.slow_runs};
  if (!works({"mpirun.openmpi", "--version"}))
    open_mpi.absent = "mpirun.openmpi is not installed (Debian: openmpi-bin)";
  if (options.ranks > kMostForOpenMpi)
    open_mpi.absent =
        cat("4.1.4's mpirun often never ends with more than ", kMostForOpenMpi, " such ranks");

  Launcher torchrun{.name = "torchrun",
                    .command = {options.python,
                                "-m",
                                "torch.distributed.run",
                                "--standalone",
                                "--nproc-per-node",
                                ranks,
                                "--no-python",
                                NOOP_PROGRAM},
                    .runs = options.slow_runs};
  if (!works({options.python, "-c", "import torch.distributed.run"})) {
    torchrun.absent = cat(
        "'", options.python, "' does not import torch (scripts/setup.sh test installs it whole)");
  }
  return {plain, muster, mpich, open_mpi, torchrun};
}

}  // namespace muster::bench
