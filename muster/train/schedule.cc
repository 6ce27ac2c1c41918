// A Schedule computes every rate from the initial one and the step, so its state is those two. A
// Plateau depends on the metrics that it has seen, so it saves what it remembers of them and the
// rates.
#include "muster/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/optimizer_parameters.h"
#include "muster/checkpoint/training/resumed_objects.h"
#include "muster/train/rate_owner.h"

namespace muster {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `others` are the numbers that the state has beside one a group.
void check_groups(const char* what, const SavedState& state, size_t others, size_t groups) {
  const size_t saved = state.numbers.size() - others;
  if (saved != groups) {
    throw invalid_argument(what,
                           ": expected a saved state of ",
                           plural(groups, "parameter group"),
                           ", got ",
                           saved,
                           "; make the optimizer with the groups that it had");
  }
}

}  // namespace

Schedule::Schedule(Optimizer& optimizer, Rate rate)
    : optimizer_(optimizer),
      owner_(own_rates(optimizer, "Schedule")),
      rate_(std::move(rate)),
      initial_(owner_->rates) {
  apply();
}

void Schedule::step() {
  if (step_ == 0)
    ResumedObjects::of_process().warn_if_left_out("schedule", "its optimizer", this, {&optimizer_});
  ++step_;
  apply();
}

// The group count is compared each time: add_param_group may come after the schedule.
void Schedule::apply() {
  auto& groups = optimizer_.param_groups();
  if (groups.size() != initial_.size()) {
    throw failed_precondition("schedule: expected an optimizer of ",
                              plural(initial_.size(), "parameter group"),
                              ", got ",
                              groups.size(),
                              "; add groups before the schedule is made");
  }
  for (const size_t i : indices_of(groups))
    groups[i].options().set_lr(rate_(initial_[i], step_));
  owner_->rates = rates_of_groups(optimizer_);
}

double Schedule::lr(size_t group) const {
  return optimizer_.param_groups().at(group).options().get_lr();
}

void Schedule::set_initial_lrs(const Doubles& rates) {
  if (rates.size() != initial_.size()) {
    throw invalid_argument("schedule: expected a rate for each of ",
                           plural(initial_.size(), "parameter group"),
                           ", got ",
                           rates.size(),
                           "; give one a group");
  }
  initial_ = rates;
  apply();
}

Strings Schedule::needed_numbers() const {
  return mapped(state().numbers, [](const auto& number) { return number.first; });
}

SavedState Schedule::state() const {
  SavedState saved;
  saved.numbers["step"] = as_number(step_);
  for (const size_t i : indices_of(initial_))
    saved.numbers[cat("initial_lr.", i)] = initial_[i];
  return saved;
}

// All numbers are read before any is set.
void Schedule::load_state(const SavedState& state) {
  const int64_t step = state.whole_number("schedule", "step");
  check_groups("schedule", state, 1, initial_.size());
  initial_ = mapped_indices(
      initial_.size(), [&](size_t i) { return state.number("schedule", cat("initial_lr.", i)); });
  step_ = step;
  apply();
}

Plateau::Plateau(Optimizer& optimizer, const PlateauOptions& options)
    : optimizer_(optimizer),
      options_(options),
      best_(options.larger_is_better ? -kInfinity : kInfinity) {
  if (options.factor >= 1 || !(options.factor >= 0)) {
    throw invalid_argument("plateau: expected a factor of 0 or more and below 1, got ",
                           options.factor,
                           "; 0.1 is the default");
  }
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{
           {"threshold", options.threshold}, {"min_lr", options.min_lr}, {"eps", options.eps}}) {
    if (!std::isfinite(value))
      throw invalid_argument(
          "plateau: expected a finite ", name, ", got ", value, "; leave it at its default");
  }
  owner_ = own_rates(optimizer, "Plateau");
}

// The margin keeps noise from counting as progress.
bool Plateau::is_better(double metric) const {
  const double margin = options_.larger_is_better ? options_.threshold : -options_.threshold;
  const double bound = options_.absolute_threshold ? best_ + margin : best_ * (1.0 + margin);
  return options_.larger_is_better ? metric > bound : metric < bound;
}

// The order is that of ReduceLROnPlateau, whose cooldown counts this step too.
bool Plateau::step(double metric) {
  if (!std::exchange(has_begun_, true))
    ResumedObjects::of_process().warn_if_left_out("plateau", "its optimizer", this, {&optimizer_});
  if (is_better(metric)) {
    best_ = metric;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience)
    return false;
  cooldown_left_ = options_.cooldown;
  bad_ = 0;
  return lower();
}

// A change smaller than eps is not worth it.
bool Plateau::lower() {
  bool has_lowered = false;
  for (auto& group : optimizer_.param_groups()) {
    const double before = group.options().get_lr();
    const double after = std::max(before * options_.factor, options_.min_lr);
    if (before - after > options_.eps) {
      group.options().set_lr(after);
      has_lowered = true;
    }
  }
  owner_->rates = rates_of_groups(optimizer_);
  return has_lowered;
}

double Plateau::lr(size_t group) const {
  return optimizer_.param_groups().at(group).options().get_lr();
}

SavedState Plateau::state() const {
  SavedState saved;
  saved.numbers = {
      {"best", best_}, {"bad", as_number(bad_)}, {"cooldown_left", as_number(cooldown_left_)}};
  for (const size_t i : indices_of(optimizer_.param_groups()))
    saved.numbers[cat("lr.", i)] = lr(i);
  return saved;
}

// The rates are saved too, since no formula gives them. All numbers are read before any is set.
void Plateau::load_state(const SavedState& state) {
  auto& groups = optimizer_.param_groups();
  const double best = state.number("plateau", "best");
  const int64_t bad = state.whole_number("plateau", "bad");
  const int64_t cooldown_left = state.whole_number("plateau", "cooldown_left");
  check_groups("plateau", state, 3, groups.size());
  owner_->rates = mapped_indices(groups.size(),
                                 [&](size_t i) { return state.number("plateau", cat("lr.", i)); });
  has_begun_ = true;
  best_ = best;
  bad_ = bad;
  cooldown_left_ = cooldown_left;
  for (const size_t i : indices_of(groups))
    groups[i].options().set_lr(owner_->rates[i]);
}

}  // namespace muster
