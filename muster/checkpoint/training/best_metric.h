// The best value of a training's metric so far, and when to stop early. A part of the training that
// Checkpoints adds by itself. Used only by Checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/strings.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/checkpoint/training/checkpoints_options.h"
#include "muster/comm/process_group.h"

namespace muster {

class BestMetric {
 public:
  // Throws: invalid_argument for a negative patience or min_delta, and for a name that is no name.
  explicit BestMetric(BestOptions options);

  // Takes the value after `step` steps. Returns whether it is the best so far, which only a finite
  // number can be.
  bool take(int64_t step, double value);
  bool stops_early() const { return options_.patience > 0 && bad_ >= options_.patience; }
  // The best value, and its step; nothing before the first finite value.
  const std::optional<double>& value() const { return best_; }
  int64_t step() const { return best_step_; }
  // What the manifest of a checkpoint after `step` steps says; nothing if no value was taken there.
  std::optional<CheckpointMetric> of_step(int64_t step) const;

  SavedState state() const;
  // Throws: invalid_argument for the state of another metric.
  void load_state(const SavedState& state);
  Strings needed_numbers() const;

 private:
  bool is_better_than(double value, const std::optional<double>& than, double by) const;
  std::string kind() const;

  BestOptions options_;
  std::optional<double> best_;
  int64_t best_step_ = 0;
  std::optional<double> reference_;  // for early stopping: the best, up to min_delta
  int64_t bad_ = 0;                  // values in a row that were not better than it
  int64_t last_step_ = -1;           // and value, that was taken last
  double last_ = 0;
};

// Rank 0's number. Collective: yes.
double of_rank0(double number, ProcessGroup& group);

}  // namespace muster
