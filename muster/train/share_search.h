// Searches for the batch shares with which the slowest rank finishes soonest. It tries promising
// shares for a window of steps, and keeps them if the ranks' times confirm it. (A rank's time need
// not be proportional to its samples, so predictions from one window may fail in the next.) A state
// machine without ranks or clocks; Rebalance feeds it the ranks' measurements.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "muster/base/lists.h"

namespace muster {

// Shares of `sum` samples, each at least 1, with which the slowest rank finishes as soon as
// possible. Units: seconds per sample. Throws: invalid_argument for a `sum` below the number of
// ranks, and for a time that is not positive.
Int64s shares_by_speed(const Doubles& seconds_a_sample, int64_t sum);

class ShareSearch {
 public:
  // `at_least`: the fraction by which a trial must be expected to shorten the step.
  ShareSearch(Int64s shares, double at_least)
      : shares_(shares), kept_(std::move(shares)), at_least_(at_least) {}

  // Evaluates the window that ended with shares(). Returns whether the next window has other
  // shares. Units: seconds per step, one per rank; a 0 means that a rank has not measured, and
  // changes nothing.
  bool observe(const Doubles& seconds);

  const Int64s& shares() const { return shares_; }
  // The reason of the last change, for the log: "[24, 24] become [32, 16]: a step should take 7.5
  // ms in place of 11.2".
  const std::string& reason() const { return reason_; }

 private:
  bool go_back(double took);
  bool try_others(const Doubles& seconds);

  Int64s shares_;            // of the current window
  Int64s kept_;              // the best measured shares; they differ from shares_ in a trial
  double kept_seconds_ = 0;  // the slowest rank's time with the kept shares
  double at_least_;
  double reach_ = 1;  // fraction of the way to the predicted optimum that a trial goes
  int64_t rest_ = 0;  // windows without a trial after a failed one
  int64_t next_rest_ = 1;
  std::string reason_;
};

}  // namespace muster
