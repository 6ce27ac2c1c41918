// A progress bar for one epoch: live on a terminal; elsewhere (a file, a pipe) one plain line per
// epoch.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/clock.h"

namespace muster {

class Progress {
 public:
  // Shows nothing unless `shown` (the main rank). Uses this process's terminal, or its launcher's
  // (MUSTER_TTY=1).
  Progress(std::string label, int64_t total_samples, bool shown);

  // Call it after a step of `samples` samples (on all ranks together) with mean loss `loss`.
  void update(int64_t samples, double loss);

  // Prints the epoch's final line. Call it once, after the last update.
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
