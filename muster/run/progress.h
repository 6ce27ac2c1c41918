// A progress bar for one epoch: alive on a terminal, one plain line an epoch elsewhere (a file, a pipe).
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/clock.h"

namespace muster {

class Progress {
 public:
  // Shows nothing unless `shown` (the main rank). The terminal is this process's, or its launcher's
  // (MUSTER_TTY=1).
  Progress(std::string label, int64_t total_samples, bool shown);

  // After a step of `samples` (of all ranks together) with this mean `loss`.
  void update(int64_t samples, double loss);

  // The epoch's line, final. Called once, after the last update.
  void finish();

  double mean_loss() const;           // over all samples so far
  double samples_per_second() const;  // since construction

 private:
  std::string line() const;

  std::string label_;
  int64_t total_;
  bool shown_;
  bool alive_;
  int64_t done_ = 0;
  double loss_sum_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_{};
};

}  // namespace muster
