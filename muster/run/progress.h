// A progress bar for one epoch: live on a terminal; elsewhere (a file, a pipe) one plain line per
// epoch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "muster/base/clock.h"
#include "muster/train/late_read.h"

namespace muster {

class Progress {
 public:
  // Shows nothing unless `shown` (the main rank). Uses this process's terminal, or its launcher's
  // (MUSTER_TTY=1).
  Progress(std::string label, int64_t total_samples, bool shown);

  // Call it after a step of `samples` samples (on all ranks together) with mean loss `loss`.
  void update(int64_t samples, double loss);

  // The same with the loss as a training step returns it. A GPU's loss is added up there and read
  // without waiting, so that the line may be some steps late.
  void update(int64_t samples, const at::Tensor& loss);

  // Prints the epoch's final line. Call it once, after the last update.
  void finish();

  // Over all samples so far. Blocking: for a GPU that has losses.
  double mean_loss() const;
  double samples_per_second() const;  // since construction

 private:
  void draw();
  void read_losses_on_gpu();
  std::string line(double loss) const;

  std::string label_;
  int64_t total_;
  bool shown_;
  bool alive_;
  int64_t done_ = 0;
  double loss_sum_ = 0;
  at::Tensor sum_on_gpu_;  // of the losses there
  LateRead reading_;       // of that sum, when read_at_ samples were done
  int64_t read_at_ = 0;
  double loss_read_ = 0;  // the mean that was read last
  TimePoint start_ = Clock::now();
  TimePoint drawn_{};
};

}  // namespace muster
