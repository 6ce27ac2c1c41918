// The launcher's spine: discover → place → rendezvous → spawn → watch → (restart | report). One host here.
// `muster run` and muster::run (a program that starts its own ranks) both call `run`. Knows nothing of
// LibTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/rank_env.h"
#include "muster/device/inventory.h"
#include "muster/placement/request.h"

namespace muster {

enum class StreamMode { console = 0, redirect = 1, tee = 2 };  // where a rank's output goes

struct LaunchOptions {
  std::vector<std::string> argv;  // the program and its arguments, as executed
  Request request;
  int cpu_slots = 0;  // 0: MUSTER_CPU_SLOTS, or 2

  std::string master_addr;  // empty: "localhost"
  int master_port = 0;      // 0: a free one, held by the launcher until the job ends
  std::string run_id;       // empty: a random UUID
  std::string role = "default";
  int max_restarts = 0;
  std::chrono::milliseconds shutdown_timeout{30'000};  // SIGTERM → this → SIGKILL
  std::string run_dir;                                 // empty: runs/<id>
  std::string log_dir;                                 // empty: <run_dir>/logs
  std::string redirects = "0";                         // torchrun's form: 0..3 or "0:1,1:2"
  std::string tee = "0";
  std::vector<int> local_ranks_filter;  // only these ranks' output on the console; empty: all
  Environment extra_env;
  bool dry_run = false;  // print the plan and stop
  bool json = false;     // the plan as JSON
  bool quiet = false;    // no placement table
  bool virtual_local_rank = false;
};

// How one rank ended.
struct WorkerExit {
  int rank = 0;
  int exit_code = 0;  // when signal == 0
  int signal = 0;
  std::string cause;                    // in plain words
  std::vector<std::string> last_lines;  // of its standard error
  std::chrono::milliseconds after{0};   // since start
};

// Runs the whole job and returns the process's exit code: 0, the first failing rank's own, or 128 + signal.
// Blocking: until every process it started has ended.
// Throws: Error before anything is started (bad request, program not found, port taken).
int run(const LaunchOptions& options);

}  // namespace muster
