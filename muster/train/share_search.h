// Looks for the batch shares with which the slowest rank is ready soonest, by trying: shares that should be
// better are tried for a window of steps, and kept where the ranks' times say that they are. (A rank's time
// need not grow evenly with its samples, so what is expected from one window may be wrong in the next.) A
// state machine without ranks or clocks; Rebalance gives it what the ranks have measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// Shares of `sum` samples, each at least 1, with which the slowest rank is ready as soon as can be. Throws:
// invalid_argument for a `sum` less than the ranks, and for a time that is not above 0. Units: seconds a
// sample.
std::vector<int64_t> shares_by_speed(const std::vector<double>& seconds_a_sample, int64_t sum);

class ShareSearch {
 public:
  // `at_least`: a trial must be expected to shorten the step by that part.
  ShareSearch(std::vector<int64_t> shares, double at_least)
      : shares_(shares), kept_(std::move(shares)), at_least_(at_least) {}

  // Of the window that has ended with shares(). True where the next one has others. Units: seconds a step,
  // one of each rank; a 0 says that a rank has not measured, and nothing changes.
  bool observe(const std::vector<double>& seconds);

  const std::vector<int64_t>& shares() const { return shares_; }
  // Of the last change, for the log: "[24, 24] become [32, 16]: a step should take 7.5 ms in place of 11.2".
  const std::string& reason() const { return reason_; }

 private:
  bool go_back(double took);
  bool try_others(const std::vector<double>& seconds);

  std::vector<int64_t> shares_;  // of the window under way
  std::vector<int64_t> kept_;    // the best that were measured; others than shares_ in a trial
  double kept_seconds_ = 0;      // the slowest rank's, with the kept ones
  double at_least_;
  double reach_ = 1;  // of the way to what is expected to be best, that a trial goes
  int64_t rest_ = 0;  // windows without a trial, after one that has failed
  int64_t next_rest_ = 1;
  std::string reason_;
};

}  // namespace muster
