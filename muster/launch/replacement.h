// `muster run --on-failure replace`: ranks that fail are started again one by one, while the others
// keep their processes and come to a new generation of the job (muster/store/generations.h). What
// run_local_ranks asks and is told, and the answer of the launcher of one host; of several, their
// coordinator decides.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/launch/launch.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/rank_spec.h"

namespace muster {

class GpuWatch;
class JobSetup;
class Restarts;
class RunRecorder;
class Store;

// Ranks that failed together, the cause first, and what is left on this host.
struct RankFailures {
  RankExits failed;
  IntSet left{};                 // the ranks that go on
  bool some_have_ended = false;  // well, and so are not there for a new generation
};

// The job goes on in this generation: processes that run come to it, ranks without one get one.
struct NextGeneration {
  int number = 0;
  // Those of all of this host's ranks, in the order in which they were started.
  RankSpecs specs{};
  milliseconds pause{0};  // before processes are started; the others are told at once
  std::string why{};
};

// Between run_local_ranks and whoever replaces ranks.
struct Replacing {
  // True: go_on() follows, now or later, or the end of all. False: the others are to end now.
  std::function<bool(const RankFailures&)> replace{};
  // These go through this host's store; `process` is a process_name.
  std::function<void(const std::string& process, const NextGeneration&, const RankSpec&)> announce =
      {};
  std::function<bool(const std::string& process, int generation)> has_come{};
  // Whether the process is in the midst of a checkpoint, for which it is given time.
  std::function<bool(const std::string& process)> is_saving{};
  milliseconds patience{30'000};                               // with a process that does not come
  milliseconds patience_with_saves = std::chrono::minutes(5);  // more, while it saves
  bool others_run_elsewhere = false;                           // the job has ranks on other hosts
  // A process that was to come to the generation had done its work already: all here end.
  TextFunction on_given_up{};
  // run_local_ranks sets it while it runs, for callbacks of its loop. Throws: SpawnError, io.
  std::function<void(const NextGeneration&)> go_on{};
};

// One whose words go through the store of this launcher, and that looks at the ranks' files in
// `run_dir`.
Replacing replacing_over(std::shared_ptr<Store> store,
                         const std::string& run_dir,
                         milliseconds patience);

// Says why these cannot be replaced while the others go on; "" if they can.
std::string obstacle_to_replacing(const RankFailures& failures);
// Says why ranks that ended so cannot be replaced, whoever is left; "" if they can.
std::string obstacle_of_exits(const RankExits& failed);

// Returns "rank 1: killed by SIGKILL, rank 2: …".
std::string failures_in_words(const RankExits& failed);

// Returns "rank 2: killed by SIGKILL (…); a replacement is started, the others keep their processes
// (1 of 3 restarts)".
std::string describe_replacing(const RankExits& failed, milliseconds pause, int used, int budget);

// One host's: one budget with the restarts of all ranks. `attempt` is the newest generation's
// number.
class InPlaceRestarts : NoCopy {
 public:
  InPlaceRestarts(const Plan& plan,
                  const LaunchOptions& options,
                  JobSetup& job,
                  Restarts& restarts,
                  RunRecorder& record,
                  int& attempt,
                  const GpuWatch* gpus);

  // Valid as long as this.
  Replacing& rules() { return rules_; }

  // All ranks have ended so: the failures for which the last replacements were started may be why.
  void explain(RankExits& exits);

 private:
  bool replace(const RankFailures& failures);

  const Plan& plan_;
  const LaunchOptions& options_;
  JobSetup& job_;
  Restarts& restarts_;
  RunRecorder& record_;
  int& attempt_;
  const GpuWatch* gpus_;  // nullptr: they are not looked at
  RankExits replaced_;    // last
  Replacing rules_;
};

}  // namespace muster
