// Runs a job: discover → place → rendezvous → spawn → watch → (restart | report). This is the part
// for one host. `muster run` and muster::run (a program that starts its own ranks) both call
// `launch`. Knows nothing of LibTorch.
#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/failure_policy.h"
#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/launch/rank_exit.h"
#include "muster/placement/plan.h"
#include "muster/placement/request.h"

namespace muster {

// Another program of the same job.
struct ProgramRanks {
  Strings argv{};
  int num_ranks = 1;
  std::string role = "default";
};

struct LaunchOptions {
  Strings argv{};         // the program and its arguments, as executed
  std::string program{};  // the file to execute; empty: argv[0], found by PATH
  // Programs that the last ranks run, in this order; the ranks before them run `argv`. The
  // request's number of ranks includes them.
  std::vector<ProgramRanks> more_programs{};
  Request request{};
  // A file to plan for instead of this machine; ranks then run on the CPU, simulated.
  std::string inventory{};
  int cpu_slots = 0;   // 0: MUSTER_CPU_SLOTS, or 2
  std::string plan{};  // execute this plan file exactly; `request` is then ignored
  std::string svg{};   // with dry_run: draw the plan into this file
  // With dry_run: what to print after the plan; with `json`, the JSON of the member "model".
  std::function<std::string(const Inventory&, const Plan&)> about_model{};
  bool lease = true;          // lease every GPU, so that no two jobs get the same one
  bool looks_at_gpus = true;  // check them after a failure, so that no restart uses a bad one
  // How long to wait for GPUs that other jobs hold; nothing: not at all.
  OptionalDuration wait{};

  std::string master_addr{};  // empty: "localhost"
  int master_port = 0;        // 0: a free one, held by the launcher until the job ends
  std::string run_id{};       // empty: a random UUID
  std::string role = "default";
  int max_restarts = 0;
  FailurePolicy failure_policy = FailurePolicy::end;
  milliseconds rejoin_within{30'000};     // with `replace`: for the others to join again
  milliseconds shutdown_timeout{30'000};  // grace period between SIGTERM and SIGKILL
  // Longest SIGSTOP of a rank; nothing: only report.
  OptionalDuration stopped_timeout{};
  Ints stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  // that end the job
  std::string run_dir{};                                   // empty: runs/<id>
  std::string log_dir{};  // empty: <run_dir>/logs, else <log_dir>/<id>
  // Both in torchrun's form: 0..3 (1 stdout, 2 stderr), or "0:1,1:2" by local rank.
  std::string redirects = "0";
  std::string tee = "0";
  Ints local_ranks_filter{};  // show only these ranks on the console; empty: all
  bool collapse = true;  // on a terminal: "[0-7] message ×8" for a line that several ranks print
  // May use ${rank}, ${local_rank}, ${role_name}, ${hostname}; empty: "[rank] ", or no prefix for a
  // job of one rank.
  std::string line_prefix{};
  Environment extra_env{};  // overrides the launcher's own environment
  // The folder that ranks run in; empty: the launcher's. The program is always found from the
  // launcher's folder.
  std::string work_dir{};
  // For the whole job, which then ends as by SIGTERM.
  OptionalDuration time_limit{};
  // The limit counts from now, as Slurm's does, and not from the start of the ranks.
  bool limit_has_begun = false;
  bool dry_run = false;             // print the plan on standard output and stop
  bool json = false;                // the plan as JSON
  bool quiet = false;               // no placement table
  bool virtual_local_rank = false;  // LOCAL_RANK=0 for every rank, each seeing its own GPU alone
  // Called with the first rank that failed, when a failure has ended the job. One host only.
  std::function<void(const RankExit&)> on_job_failed{};
};

inline constexpr int kReplacements = 3;         // default max_restarts with `replace`
inline constexpr int kTimeLimitExitCode = 124;  // as timeout(1)

// Runs the whole job. Returns the process's exit code: 0, the first failing rank's own, 128 +
// signal, or kTimeLimitExitCode. Blocking: until every process that it started has ended. Throws:
// Error, before anything is started (bad request, program not found, port taken).
int launch(const LaunchOptions& options);

// The exit code of a launcher that could not start its job: 2 usage, 126 not executable, 127 not
// found, else 1.
int exit_code_of(const Error& error);

}  // namespace muster
