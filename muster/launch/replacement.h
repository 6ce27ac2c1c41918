// `muster run --on-failure replace`: ranks that fail are started again one by one, while the others keep
// their processes and come to a new generation of the job (muster/store/generations.h). What run_workers
// asks, and the agent's answer.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/launch/agent.h"
#include "muster/launch/worker_exit.h"
#include "muster/launch/worker_spec.h"

namespace muster {

class GpuWatch;
class JobSetup;
class Restarts;
class RunRecorder;
class Store;

// Ranks that failed together, the cause first, and what is left.
struct RankFailures {
  std::vector<WorkerExit> failed;
  std::set<int>
      to_start;        // the ranks that failed, and those that were about to be started in place of others
  std::set<int> left;  // that go on
  bool some_have_ended = false;  // well, and so are not there for a new generation
};

struct Replacements {
  std::vector<WorkerSpec> specs;
  std::chrono::milliseconds pause{0};  // before they are started; the others are told at once
};

// What run_workers asks whoever replaces ranks.
struct Replacing {
  // Nothing: the others are to end too.
  std::function<std::optional<Replacements>(const RankFailures&)> replace;
  std::function<bool(int rank)> has_come = {};  // to the last generation
  std::chrono::milliseconds patience{30'000};   // with a rank that is left and does not come to it
};

// Why these cannot be replaced while the others go on; empty: they can.
std::string obstacle_to_replacing(const RankFailures& failures);

// "rank 2: killed by SIGKILL (…); a replacement is started, the others keep their processes (1 of 3
// restarts)"
std::string describe_replacing(const RankFailures& failures, std::chrono::milliseconds pause, int used,
                               int budget);

// The agent's: one budget with the restarts of all ranks. `attempt` is the newest generation's number.
class InPlaceRestarts {
 public:
  InPlaceRestarts(const Plan& plan, const LaunchOptions& options, JobSetup& job, Restarts& restarts,
                  RunRecorder& record, int& attempt, const GpuWatch* gpus);

  // Valid as long as this.
  Replacing rules();

 private:
  std::optional<Replacements> replace(const RankFailures& failures);

  const Plan& plan_;
  const LaunchOptions& options_;
  JobSetup& job_;
  Restarts& restarts_;
  RunRecorder& record_;
  int& attempt_;
  const GpuWatch* gpus_;  // nullptr: they are not looked at
  std::shared_ptr<Store> store_;
};

}  // namespace muster
