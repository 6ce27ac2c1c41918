// The launcher's spine: discover → place → rendezvous → spawn → watch → (restart | report). One host here.
// `muster run` and muster::run (a program that starts its own ranks) both call `launch`. Knows nothing of
// LibTorch.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/rank_env.h"
#include "muster/launch/worker_exit.h"
#include "muster/placement/plan.h"
#include "muster/placement/request.h"

namespace muster {

// Another program of the same job.
struct ProgramRanks {
  std::vector<std::string> argv = {};
  int num_ranks = 1;
  std::string role = "default";
};

struct LaunchOptions {
  std::vector<std::string> argv = {};  // the program and its arguments, as executed
  std::string program = {};            // the file to execute for `argv`; empty: what its first names, by PATH
  // What the last ranks run instead, in this order; the ranks before them run `argv`. The request's number of
  // ranks counts all.
  std::vector<ProgramRanks> more_programs = {};
  Request request = {};
  std::string inventory = {};  // a file to plan for instead of this machine; ranks then run on CPU, simulated
  int cpu_slots = 0;           // 0: MUSTER_CPU_SLOTS, or 2
  std::string plan = {};       // a file to execute exactly; the request is then not looked at
  std::string svg = {};        // with dry_run: draw the plan into this file
  // With dry_run: what is printed after the plan; with json the JSON of its member "model".
  std::function<std::string(const Inventory&, const Plan&)> about_model = {};
  bool lease = true;          // take a lease on every GPU, so that two jobs never get the same
  bool looks_at_gpus = true;  // after a failure, so that nothing is started again on one that has gone bad
  std::optional<std::chrono::milliseconds> wait = {};  // for GPUs that other jobs hold; nothing: do not

  std::string master_addr = {};  // empty: "localhost"
  int master_port = 0;           // 0: a free one, held by the launcher until the job ends
  std::string run_id = {};       // empty: a random UUID
  std::string role = "default";
  int max_restarts = 0;
  bool goes_on = false;  // a rank that fails is lost and the others go on; one that ends well is enough for 0
  bool replaces = false;  // a rank that fails is started again alone, max_restarts times; the others stay
  std::chrono::milliseconds rejoin_within{30'000};  // with `replaces`: for the others to come together again
  std::chrono::milliseconds shutdown_timeout{30'000};             // SIGTERM → this → SIGKILL
  std::optional<std::chrono::milliseconds> stopped_timeout = {};  // of a rank in SIGSTOP; nothing: only told
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  // that end the job
  std::string run_dir = {};                                            // empty: runs/<id>
  std::string log_dir = {};     // empty: <run_dir>/logs, else <log_dir>/<id>
  std::string redirects = "0";  // torchrun's form: 0..3 (1 stdout, 2 stderr) or "0:1,1:2" by local rank
  std::string tee = "0";        // the same
  std::vector<int> local_ranks_filter = {};  // only these ranks' output on the console; empty: all
  bool collapse = true;          // on a terminal: "[0-7] message ×8" for a line that several ranks print
  std::string line_prefix = {};  // with ${rank}, ${local_rank}, ${role_name}, ${hostname}; empty: "[rank] ",
                                 // or nothing for a job of one rank
  Environment extra_env = {};    // beside the launcher's own environment, over which it wins
  std::string work_dir =
      {};  // where ranks run; empty: where the launcher does, from where the program is found
  std::optional<std::chrono::milliseconds> time_limit = {};  // of the whole job; then it ends as by SIGTERM
  bool dry_run = false;                                      // print the plan on standard output and stop
  bool json = false;                                         // the plan as JSON
  bool quiet = false;                                        // no placement table
  bool virtual_local_rank = false;  // LOCAL_RANK=0 for every rank, each seeing its own GPU alone
  // Told of the first rank that failed, when the job has ended by that. One host.
  std::function<void(const WorkerExit&)> on_failure = {};
};

inline constexpr int kReplacements = 3;         // max_restarts with `replaces`, where none is told
inline constexpr int kTimeLimitExitCode = 124;  // timeout(1)'s

// Runs the whole job and returns the process's exit code: 0, the first failing rank's own, 128 + signal, or
// kTimeLimitExitCode.
// Blocking: until every process it started has ended.
// Throws: Error before anything is started (bad request, program not found, port taken).
int launch(const LaunchOptions& options);

// The exit code of a launcher that could not start its job: 2 usage, 126 not executable, 127 not found,
// else 1.
int exit_code_of(const Error& error);

}  // namespace muster
