// The façade: a whole multi-GPU program in one call.
//
//   int main(int argc, char** argv) {
//     return muster::run(argc, argv, [](muster::Context& ctx) { ... });
//   }
//
// Started alone, the program starts one rank per device (itself again, once a rank) and guards them. Started
// as a rank, by `muster run`, torchrun, mpirun or srun, it joins as that rank.
//
// A main() may call it several times, for one job after the other. Its own ranks, which are the program
// again, come to all of the calls: each makes the one that it was started for. Those before it return what
// they returned to the launcher, and those after it what its own did. What stands between the calls every
// rank does too, and a rank's exit code is main's.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/comm/init.h"
#include "muster/placement/request.h"
#include "muster/run/context.h"

namespace muster {

// The environment variables named here win over these. Under a launcher only `backend` and, where that
// launcher assigns no devices (torchrun, srun, mpirun), `surplus` count.
struct RunOptions {
  std::optional<int> nproc = {};  // ranks; default: one per device. MUSTER_NPROC
  std::string gpus = {};          // as `muster run --gpus`. MUSTER_GPUS
  std::string policy = {};        // default: list with a map, else sequential. MUSTER_POLICY
  std::vector<int> map = {};      // GPU of each rank, with policy "list"
  std::string backend = "auto";   // auto, gloo, nccl, shm, shm+gloo, mpi. MUSTER_BACKEND
  NcclOptions nccl = {};
  // After which a collective fails when a rank does not come to it. MUSTER_COLLECTIVE_TIMEOUT
  std::chrono::milliseconds collective_timeout = InitOptions{}.timeout;
  Visibility visibility = Visibility::job;
  // More ranks than GPUs on a host. drop: ranks without one are not started; where another launcher has
  // started them, they end at once with 0 and without `fn`, and the others are the job. MUSTER_SURPLUS
  Surplus surplus = Surplus::error;
  // Errors say where they were thrown; SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT print a stack before they
  // end a rank. 0 or 1. MUSTER_BACKTRACE
  bool backtrace = true;
};

// Runs `fn` on every rank. Returns the process's exit code: 0, or that of the failure, which was printed and,
// when a launcher asked for it, written to TORCHELASTIC_ERROR_FILE. Never throws; `argv` is left alone. The
// ranks are started with the arguments that the program itself was started with, whatever a library has taken
// out of `argv` since.
int run(int argc, char** argv, const std::function<void(Context&)>& fn);
int run(const RunOptions& options, int argc, char** argv, const std::function<void(Context&)>& fn);

}  // namespace muster
