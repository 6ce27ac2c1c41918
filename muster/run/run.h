// A whole multi-GPU program in one call.
//
//   int main(int argc, char** argv) {
//     return muster::run(argc, argv, [](muster::Context& ctx) { ... });
//   }
//
// Started on its own, the program launches one rank per device (itself, once per rank) and
// supervises them. Started as a rank, by `muster run`, torchrun, mpirun or srun, it joins as that
// rank.
//
// A main() may call run() several times, for one job after another. The ranks are the same program,
// so they reach every call, but each rank runs only the call that it was started for. Earlier calls
// return what they returned in the launcher; later calls return the exit code of the rank's own
// call. Code between the calls runs on every rank too, and a rank's exit code is that of main().
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

// The environment variables named here override these options. Under a launcher the options that
// place ranks (nproc, gpus, policy, map, visibility) are not used, and rank 0 says so; `surplus`
// counts only if that launcher assigns no devices (torchrun, srun, mpirun).
struct RunOptions {
  std::optional<int> nproc = {};  // ranks; default: one per device. MUSTER_NPROC
  std::string gpus = {};          // as `muster run --gpus`. MUSTER_GPUS
  std::string policy = {};        // default: list if `map` is given, else sequential. MUSTER_POLICY
  std::vector<int> map = {};      // the GPU of each rank, for policy "list"
  std::string backend = "auto";   // auto, gloo, nccl, shm, shm+gloo, mpi. MUSTER_BACKEND
  NcclOptions nccl = {};
  // How long a collective waits for a missing rank before it fails. MUSTER_COLLECTIVE_TIMEOUT
  std::chrono::milliseconds collective_timeout = InitOptions{}.timeout;
  Visibility visibility = Visibility::job;
  // What to do with more ranks than GPUs on a host. drop: ranks without a GPU are not started. If
  // another launcher has started them, they end at once with exit code 0, without calling `fn`; the
  // others form the job. MUSTER_SURPLUS
  Surplus surplus = Surplus::error;
  // Errors say where they were thrown, and SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT print a
  // stack before they end a rank. MUSTER_BACKTRACE: 0 or 1
  bool backtrace = true;
};

// Runs `fn` on every rank. Returns the process's exit code: 0, or that of the failure. The failure
// is printed and, if a launcher asks for it, written to TORCHELASTIC_ERROR_FILE. Never throws, and
// never changes `argv`. The ranks get the arguments that the program itself was started with, even
// if a library has since removed some from `argv`.
int run(int argc, char** argv, const std::function<void(Context&)>& fn);
int run(const RunOptions& options, int argc, char** argv, const std::function<void(Context&)>& fn);

}  // namespace muster
