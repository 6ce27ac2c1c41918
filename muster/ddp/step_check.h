// Finds, within the step, ranks that average gradients of different steps: one of them has skipped a backward
// (`if (isnan(loss)) continue;`), and from then on its all_reduces meet those of its peers' earlier step, of
// the same shapes. After every backward that reduces, the ranks compare how many forwards they had without
// one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

class StepCheck {
 public:
  // A forward that is to be reduced. `reached` is set when a backward comes to its outputs.
  struct Forward {
    std::atomic<bool> reached = false;
    bool visible = false;  // its outputs can be watched
  };

  // `active` false: nothing is compared.
  StepCheck(ProcessGroup group, bool active) : group_(std::move(group)), active_(active) {}

  std::shared_ptr<Forward> add_forward();

  // The last forwards' backward has ended on this rank. Collective. Blocking: until it has on every rank.
  // Throws: failed_precondition, on every rank, when they had not the same number of forwards without a
  // backward.
  void compare();

  // In the place of compare(), on a rank that has no more inputs while others have (join).
  void shadow();

  // An exception cut the backward short: the ranks begin alike again. Collective. Throws: invalid_argument on
  // every rank, when it has not on all: the others wait in compare().
  void compare_after_failure();

  // Makes a call of the group, whose ranks may be elsewhere. Throws: what it throws, and invalid_argument
  // says then where this rank is.
  void meet(const char* where, const std::function<void()>& call);

 private:
  void count_skipped();
  at::Tensor exchange(int64_t backwards, int64_t skipped);
  std::string counts_of_all(const int64_t* values) const;

  ProcessGroup group_;
  const bool active_;
  int64_t backwards_ = 0;
  int64_t skipped_ = 0;
  int64_t failures_ = 0;
  std::vector<std::shared_ptr<Forward>> forwards_;  // since the last backward that was reduced
};

}  // namespace muster
