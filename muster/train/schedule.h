// Learning rates as functions of the step. A `Rate` is a value that says what a step's rate is, and can be
// printed; a `Schedule` applies it to an optimizer; a `Plateau` looks at a metric instead.
//
//   muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = 10000, .warmup = 500}));
//   … optimizer.step(); schedule.step();
//
// Nothing is multiplied onto the last rate: what is resumed at step 700 has the very rates of a run that
// never stopped. Source: torch.optim.lr_scheduler, whose closed forms these are.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/train/saved_state.h"

namespace muster {

// What the rate is in step `step` (from 0), for a parameter group that began with `initial`.
struct Rate {
  std::function<double(double initial, int64_t step)> of;
  std::string text;  // "cosine to 0 in 10000 steps"
  double operator()(double initial, int64_t step) const { return of(initial, step); }
};

namespace rate {

// Numbers that are out of range are invalid_argument, with all of these.

// `factor` times the initial rate for `steps` steps (for ever where that is 0), then the initial one.
Rate constant(double factor = 1, int64_t steps = 0);

struct LinearOptions {
  int64_t steps = 1;
  double from = 1.0 / 3;  // times the initial rate
  double to = 1;          // and so it stays
};
Rate linear(const LinearOptions& options);

struct CosineOptions {
  int64_t steps = 1;  // of the whole, the warm-up included; then the rate stays
  int64_t warmup = 0;
  double warmup_from = 0.01;  // times the initial rate, in the first step
  double final_fraction = 0;  // of the initial rate
};
Rate cosine(const CosineOptions& options);

struct OneCycleOptions {
  int64_t steps = 2;  // the initial rate is the highest
  double rising = 0.3;
  double div_factor = 25;         // the highest by the first
  double final_div_factor = 1e4;  // the first by the last
  bool linear = false;            // instead of cosines
  bool three_phases = false;      // back down to the first before the last descent
};
Rate one_cycle(const OneCycleOptions& options);

struct PolynomialOptions {
  int64_t steps = 1;
  double power = 1;
};
Rate polynomial(const PolynomialOptions& options);

Rate step(int64_t every, double gamma = 0.1);
Rate multi_step(std::vector<int64_t> milestones, double gamma = 0.1);
Rate exponential(double gamma);

// Your own: a factor of the initial rate.
Rate lambda(std::function<double(int64_t step)> factor, std::string text = "own");

// One after the other: the second begins, at its step 0, at the first milestone.
Rate sequential(std::vector<Rate> parts, std::vector<int64_t> milestones);
// All at once: their factors are multiplied.
Rate chained(std::vector<Rate> parts);

}  // namespace rate

class Schedule {
 public:
  // Takes the rates that the optimizer's groups have as the initial ones, and sets those of step 0. The
  // optimizer must outlive it.
  Schedule(torch::optim::Optimizer& optimizer, Rate rate);

  // After every step of the optimizer.
  void step();

  double lr(size_t group = 0) const;  // that the next step of the optimizer takes
  int64_t steps() const { return step_; }
  const std::string& text() const { return rate_.text; }

  SavedState state() const;
  // Sets the rates too. Throws: invalid_argument for another number of groups.
  void load_state(const SavedState& state);

 private:
  void apply();

  torch::optim::Optimizer& optimizer_;
  Rate rate_;
  std::vector<double> initial_;  // of each group
  int64_t step_ = 0;
};

struct PlateauOptions {
  bool larger_is_better = false;
  double factor = 0.1;
  int64_t patience = 10;  // calls without progress that are waited for
  double threshold = 1e-4;
  bool absolute_threshold = false;  // not as a part of the best
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;  // smaller changes are left out
};

// Lowers the rates where a metric makes no progress. It changes the rates themselves, so not for an optimizer
// that has a Schedule. Give all ranks the same metric (Metrics::write returns it), or their rates differ.
class Plateau {
 public:
  // Throws: invalid_argument for a factor that is not below 1.
  explicit Plateau(torch::optim::Optimizer& optimizer, const PlateauOptions& options = {});

  // After every evaluation. True where the rates were lowered.
  bool step(double metric);

  double lr(size_t group = 0) const;
  SavedState state() const;
  void load_state(const SavedState& state);

 private:
  bool is_better(double metric) const;
  void lower();

  torch::optim::Optimizer& optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t bad_ = 0;
  int64_t cooldown_left_ = 0;
};

}  // namespace muster
