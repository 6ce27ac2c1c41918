// How ranks that have no more inputs learn what the others do: before every forward all ranks tell each
// other.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/comm/process_group.h"

namespace torch::optim {
class Optimizer;
}

namespace muster {

struct JoinOptions {
  // True: the sum of gradients is divided by the number of ranks, so that an input counts the same in every
  // step. False: by the number of ranks that still have inputs. A hook divides by what it likes.
  bool divide_by_initial_world_size = true;
  // Ranks do not go on without the others: all leave, at the first forward that not all of them run.
  bool stop_together = false;
  // A rank that shadows takes no steps, so moments and counts of steps differ in the end. These, whose states
  // LibTorch can save, get the state and the options of the last rank's, as the model gets its parameters.
  // What else goes with steps (schedules, averages) is the user's. Null pointers are left out.
  std::vector<torch::optim::Optimizer*> optimizers = {};
};

struct JoinResult {
  int64_t shadowed = 0;  // forwards of others after this rank's last
  bool stopped = false;  // by stop_together, before all ranks were through
};

// While it lives in this thread, ranks without inputs shadow those that have some: the forwards and backwards
// of one model, and nothing else. So other collectives must be refused.
class RanksShadow {
 public:
  explicit RanksShadow(bool active) : before_(active_here()) { active_here() = before_ || active; }
  ~RanksShadow() { active_here() = before_; }
  RanksShadow(const RanksShadow&) = delete;
  RanksShadow& operator=(const RanksShadow&) = delete;

  static bool here() { return active_here(); }

 private:
  static bool& active_here();
  bool before_;
};

// Thrown out of a forward, and caught by join().
struct StopTogether {};

class JoinRounds {
 public:
  JoinRounds(ProcessGroup group, const JoinOptions& options) : group_(std::move(group)), options_(options) {}

  // What a rank is about to do.
  struct Plan {
    bool active = false;
    bool records = false;     // a graph
    bool reduces = false;     // a backward follows that is reduced
    bool broadcasts = false;  // buffers
    bool changed = false;     // parameters were frozen, unfrozen or registered
    bool shadowed = false;    // it has no inputs, while others had
  };
  struct Answer {
    int active = 0;  // ranks
    int source = 0;  // the last rank that is active, or was when all others had ended
    Plan plan;       // of the active ones
  };
  // Collective. Throws: failed_precondition, on every rank, where the active ranks have different plans or
  // changed parameters.
  Answer meet(const Plan& mine);

  const JoinOptions& options() const { return options_; }

 private:
  ProcessGroup group_;
  const JoinOptions options_;
};

}  // namespace muster
