// Finds, within the step, ranks that average gradients of different steps. If one rank skips a
// backward (`if (isnan(loss)) continue;`), its all_reduces then meet those of its peers' earlier
// step, with the same shapes. After every reduced backward, the ranks therefore compare how many
// forwards they ran without a backward. Samples of weights and gradients travel along.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/outside_leaves.h"
#include "muster/ddp/value_sample.h"

namespace muster {

enum class ModelMode : int64_t { unknown, training, evaluation };

// What travels with a rank's counts; ReplicaWatch takes and judges it.
struct StepSamples {
  ModelMode mode = ModelMode::unknown;
  ValueSample weights = {};   // of the parameter whose turn it is
  ValueSample gradient = {};  // before the average
  LeavesSample outside = {};  // of the wrapped models
};

// What a rank says of a step.
struct RankStep {
  int64_t rank = 0;       // of the job
  int64_t backwards = 0;  // reduced ones
  int64_t skipped = 0;    // forwards without one
  StepSamples samples = {};
};
using RankSteps = std::vector<RankStep>;

class StepCheck {
 public:
  // A forward that is to be reduced. `reached` is set when a backward reaches its outputs.
  struct Forward {
    std::atomic<bool> reached = false;
    bool visible = false;  // its outputs can be watched
  };

  // `active` false: nothing is compared.
  StepCheck(ProcessGroup group, bool active) : group_(std::move(group)), active_(active) {}

  std::shared_ptr<Forward> add_forward();

  // The backward of the last forwards has ended on this rank. Returns what every rank said, by
  // rank; none where nothing is compared. Collective: yes. Blocking: until it has ended on every
  // rank. Throws: failed_precondition, on every rank, if they ran different numbers of forwards
  // without a backward.
  RankSteps compare(const StepSamples& samples = {});

  // Replaces compare() on a rank without more inputs while others have some (join).
  void shadow();

  int64_t backwards() const { return backwards_; }  // that were compared

  // An exception has interrupted the backward: the ranks start anew together. Collective: yes.
  // Throws: invalid_argument, on every rank, if it did not happen on all: the others wait in
  // compare().
  void compare_after_failure();

  // Makes a call of the group while other ranks may be elsewhere. Throws: what the call throws; an
  // invalid_argument also says where this rank is.
  void meet(const char* where, const Callback& call);
  // Does what meet() does, in a forward. Errors of ranks that have left or are late also say how to
  // evaluate on some ranks only.
  void meet_in_forward(const char* where, const Callback& call);

 private:
  [[noreturn]] void rethrow(const Error& error, const char* where, const std::string& next) const;
  void count_skipped();
  RankSteps exchange(const RankStep& mine);

  ProcessGroup group_;
  const bool active_;
  int64_t backwards_ = 0;
  int64_t skipped_ = 0;
  int64_t failures_ = 0;
  std::vector<std::shared_ptr<Forward>> forwards_;  // since the last reduced backward
};

}  // namespace muster
