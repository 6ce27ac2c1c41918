// Learning rates as functions of the step. A `Rate` is a printable value that gives the rate of
// each step. A `Schedule` applies it to an optimizer. A `Plateau` follows a metric instead.
//
//   muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = 10000, .warmup = 500}));
//   … optimizer.step(); schedule.step();
//
// Rates are computed from the step, never from the last rate: a run resumed at step 700 has exactly
// the rates of one that never stopped. Source: torch.optim.lr_scheduler; these are its closed
// forms.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/checkpoint/saved_state.h"

namespace muster {

struct RateOwner;

// The rate in step `step` (from 0) of a parameter group that started with `initial`.
struct Rate {
  std::function<double(double initial, int64_t step)> of;
  std::string text;  // "cosine to 0 in 10000 steps"
  double operator()(double initial, int64_t step) const { return of(initial, step); }
};

namespace rate {

// All of these throw invalid_argument for numbers out of range.

// `factor` times the initial rate for `steps` steps (0: forever), then the initial rate.
Rate constant(double factor = 1, int64_t steps = 0);

struct LinearOptions {
  int64_t steps = 1;
  double from = 1.0 / 3;  // times the initial rate
  double to = 1;          // the same; also the rate after the last step
};
Rate linear(const LinearOptions& options);

struct CosineOptions {
  int64_t steps = 1;  // in total, including the warm-up; the rate is constant after them
  int64_t warmup = 0;
  double warmup_from = 0.01;  // times the initial rate, in the first step
  double final_fraction = 0;  // of the initial rate
};
Rate cosine(const CosineOptions& options);

struct OneCycleOptions {
  int64_t steps = 2;  // the initial rate is the maximum
  double rising = 0.3;
  double div_factor = 25;         // maximum / first rate
  double final_div_factor = 1e4;  // first rate / last rate
  bool linear = false;            // instead of cosine
  bool three_phases = false;      // return to the first rate before the final descent
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

// Your own factor of the initial rate.
Rate lambda(std::function<double(int64_t step)> factor, std::string text = "own");

// One after another: the second starts, at its step 0, at the first milestone.
Rate sequential(std::vector<Rate> parts, std::vector<int64_t> milestones);
// All at once: multiplies their factors.
Rate chained(std::vector<Rate> parts);

}  // namespace rate

class Schedule {
 public:
  // Takes the current rates of the optimizer's groups as the initial ones, and sets those of step
  // 0. The optimizer must outlive it. Throws: failed_precondition while the optimizer has another
  // Schedule or a Plateau, whose rates would be the initial ones.
  Schedule(torch::optim::Optimizer& optimizer, Rate rate);

  // Call it after every optimizer step.
  void step();

  double lr(size_t group = 0) const;  // for the optimizer's next step
  int64_t steps() const { return step_; }
  const std::string& text() const { return rate_.text; }
  torch::optim::Optimizer& optimizer() { return optimizer_; }

  // The rates that the groups started with. Setting others also sets the rates of this step.
  // Throws: invalid_argument for another number of groups.
  const std::vector<double>& initial_lrs() const { return initial_; }
  void set_initial_lrs(const std::vector<double>& rates);

  SavedState state() const;
  // Also sets the rates. Throws: invalid_argument for another number of groups.
  void load_state(const SavedState& state);
  std::vector<std::string> needed_numbers() const;  // those that load_state() needs

 private:
  void apply();

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<RateOwner> owner_;
  Rate rate_;
  std::vector<double> initial_;  // of each group
  int64_t step_ = 0;
};

struct PlateauOptions {
  bool larger_is_better = false;
  double factor = 0.1;
  int64_t patience = 10;  // calls without progress before the rate drops
  double threshold = 1e-4;
  bool absolute_threshold = false;  // not relative to the best
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;  // smaller changes are skipped
};

// Lowers the rates when a metric stops improving. It changes the rates themselves, so do not
// combine it with a Schedule (an error). Give all ranks the same metric (as Metrics::write
// returns), or their rates will differ.
class Plateau {
 public:
  // Throws: invalid_argument unless the factor is below 1; failed_precondition while the optimizer
  // has a Schedule or another Plateau.
  explicit Plateau(torch::optim::Optimizer& optimizer, const PlateauOptions& options = {});

  // Call it after every evaluation. Returns whether the rates were lowered.
  bool step(double metric);

  double lr(size_t group = 0) const;
  SavedState state() const;
  // Also sets the rates. Throws: invalid_argument for another number of groups.
  void load_state(const SavedState& state);

 private:
  bool is_better(double metric) const;
  bool lower();  // whether a rate became lower

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<RateOwner> owner_;
  PlateauOptions options_;
  double best_;
  int64_t bad_ = 0;
  int64_t cooldown_left_ = 0;
  bool has_begun_ = false;  // or was loaded
};

}  // namespace muster
