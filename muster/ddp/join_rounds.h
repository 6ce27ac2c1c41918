// Before every forward all ranks exchange what they are about to do, so that ranks without more
// inputs learn what the others do.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/comm/process_group.h"

namespace torch::optim {
class Optimizer;
}

namespace muster {

struct JoinOptions {
  // True: divide the sum of gradients by the number of ranks, so that an input counts the same in
  // every step. False: divide by the number of ranks that still have inputs. A hook chooses its own
  // divisor.
  bool divide_by_initial_world_size = true;
  // No rank goes on without the others: all leave at the first forward that not every rank runs.
  bool stop_together = false;
  // A shadowing rank takes no optimizer steps, so moments and step counts would differ in the end.
  // These optimizers, of kinds whose state LibTorch can save, get the state and options of the last
  // active rank, as the model gets its parameters. Other things that go with steps (schedules,
  // averages) are up to the user. Null pointers are skipped.
  std::vector<torch::optim::Optimizer*> optimizers = {};
};

struct JoinResult {
  int64_t shadowed = 0;  // forwards of others after this rank's last
  bool stopped = false;  // by stop_together, before all ranks were done
};

// While it lives in this thread, ranks without inputs shadow the forwards and backwards of one
// model, and nothing else. Other collectives must therefore be refused.
class RanksShadow : NoCopy {
 public:
  explicit RanksShadow(bool active) : before_(active_here()) { active_here() = before_ || active; }
  ~RanksShadow() { active_here() = before_; }

  static bool here() { return active_here(); }

 private:
  static bool& active_here();
  bool before_;
};

// Thrown out of a forward and caught by join().
struct StopTogether {};

class JoinRounds {
 public:
  JoinRounds(ProcessGroup group, const JoinOptions& options)
      : group_(std::move(group)), options_(options) {}

  // A rank is about to do this.
  struct Plan {
    bool active = false;
    bool records = false;     // builds a graph
    bool reduces = false;     // a reduced backward follows
    bool broadcasts = false;  // buffers
    bool changed = false;     // parameters were frozen, unfrozen or registered
    bool shadowed = false;    // it has no inputs, while others had
  };
  struct Answer {
    int active = 0;  // number of active ranks
    int source = 0;  // the last active rank, or the last that was, once all have ended
    Plan plan;       // of the active ranks
  };
  // Collective: yes.
  // Throws: failed_precondition, on every rank, if the active ranks have different plans or changed
  // parameters.
  Answer meet(const Plan& mine);

  const JoinOptions& options() const { return options_; }

 private:
  ProcessGroup group_;
  const JoinOptions options_;
};

}  // namespace muster
