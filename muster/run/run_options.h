// What `muster run` takes as flags, for a program that starts its own ranks. Each member is called
// as its flag: `rank_memory` is --rank-memory, and `rank_memory=` of muster.spawn in Python.
// docs/options.md has the table, and the flags that are no members.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/failure_policy.h"
#include "muster/base/mesh_shape.h"
#include "muster/base/rank_env.h"
#include "muster/comm/nccl_options.h"
#include "muster/placement/request.h"

namespace muster {

// The environment variables named here override these options.
//
// Under a launcher its flags win: rank 0 warns of each option that is not used. These count there
// too: backend, nccl, collective_timeout and backtrace; mesh and global_batch, if the launcher has
// none; surplus, if the launcher assigns no devices (torchrun, srun, mpirun).
//
// A wrong value is the error that the flag gives, before any rank starts.
struct RunOptions {
  // Which devices.
  std::optional<int> nproc_per_node{};  // ranks; default: one per device. MUSTER_NPROC
  bool cpu_only = false;                // --nproc-per-node cpu: CPU slots, also beside GPUs
  bool gpu_only = false;                // --nproc-per-node gpu: no GPU is an error
  std::string gpus{};                   // "0,2-5", "free:2", "model=A100", … MUSTER_GPUS
  int gpus_per_rank = 1;                // for programs that drive several in one process
  std::string policy{};                 // docs/placement.md; empty: as below. MUSTER_POLICY
  std::vector<int> map{};               // the GPU of each rank, by its index: policy "list"
  // The same as a function of the machine and the number of ranks: it returns the index of each
  // rank's GPU. (Request::choose)
  std::function<std::vector<int>(const Host& host, int num_ranks)> choose{};
  // Relative speed of GPUs, by UUID, index ("3") or model: policy "fastest". read_scores() reads a
  // file for --scores (muster/launch/score_file.h).
  std::map<std::string, double> scores{};
  // Free bytes that each rank needs on its GPU; the last value repeats: policy "memory".
  std::vector<uint64_t> rank_memory{};
  // Samples per step of all ranks, divided in proportion to the scores; 0: not given.
  int64_t global_batch = 0;
  std::vector<MeshAxis> mesh{};  // {{"dp", 2}, {"tp", 4}}, one size may be -1: policy "mesh"
  // What to do with more ranks than GPUs on a host. drop: ranks without a GPU are not started. If
  // another launcher has started them, they end at once with exit code 0, without calling `fn`; the
  // others form the job. MUSTER_SURPLUS
  Surplus surplus = Surplus::error;
  Visibility visibility = Visibility::job;
  NumaBinding numa_binding = NumaBinding::none;
  int cpu_slots = 0;        // 0: MUSTER_CPU_SLOTS, or 2
  std::string inventory{};  // a file: plan for that machine; ranks run on the CPU.
                            // MUSTER_INVENTORY

  // GPUs that other jobs may hold.
  std::string plan{};  // a file: start the ranks of this plan (from muster plan --json)
  // How long to wait for them; nothing: not at all; milliseconds::max(): as long as it takes.
  std::optional<std::chrono::milliseconds> wait{};
  bool no_lease = false;      // take no lease on the GPUs
  bool no_gpu_check = false;  // after a failure, keep GPUs that have new errors

  // The ranks.
  Environment env{};      // further variables of the ranks
  std::string workdir{};  // their folder; empty: this one
  std::string run_dir{};  // the run's folder; empty: runs/<id>

  // Limits and failures.
  std::string timeout{};              // "90m"; "slurm", "slurm-10m": before Slurm's job ends
  std::optional<int> max_restarts{};  // default: 0; 3 with on_failure replace
  FailurePolicy on_failure = FailurePolicy::end;  // MUSTER_ON_FAILURE
  // How long a collective waits for a missing rank before it fails; default: 30 minutes.
  // MUSTER_COLLECTIVE_TIMEOUT
  std::optional<std::chrono::milliseconds> collective_timeout{};
  std::optional<std::chrono::milliseconds> stopped_timeout{};  // of a rank by SIGSTOP
  std::chrono::milliseconds shutdown_timeout{30'000};          // from SIGTERM to SIGKILL
  std::vector<int> signals_to_handle = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  // that end the job

  // What is shown, and where the ranks' output goes.
  bool dry_run = false;                    // print the plan, start nothing and return 0
  bool json = false;                       // the plan as JSON
  bool quiet = false;                      // no table, no summary of the time
  bool no_collapse = false;                // the same line of several ranks for each of them
  std::string trace{};                     // "1" or "operators": trace.json. MUSTER_TRACE
  std::string redirects = "0";             // "3", "0:1,1:2": to files instead of the console
  std::string tee = "0";                   // the same: to files and the console
  std::string log_dir{};                   // empty: logs/ in the run's folder
  std::vector<int> local_ranks_filter{};   // whose output is shown; empty: all
  std::string log_line_prefix_template{};  // may have ${rank}, ${local_rank}, ${hostname}

  // These have no flag: the ranks' own.
  std::string backend = "auto";  // auto, gloo, nccl, shm, shm+gloo, mpi. MUSTER_BACKEND
  NcclOptions nccl{};
  // Errors say where they were thrown, and SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT print a
  // stack before they end a rank. MUSTER_BACKTRACE: 0 or 1
  bool backtrace = true;
};

}  // namespace muster
