// The state names the metric and its direction as a number, so that a checkpoint of another one is
// refused before anything of it is loaded.
#include "muster/checkpoint/training/best_metric.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/best.h"

namespace muster {

namespace {

constexpr auto kBest = "best";
constexpr auto kBestStep = "best step";
constexpr auto kReference = "reference";
constexpr auto kBad = "not better";
constexpr auto kLast = "last";
constexpr auto kLastStep = "last step";

void put_if_any(SavedState& state, const char* name, const std::optional<double>& number) {
  if (number)
    state.numbers[name] = *number;
}

std::optional<double> number_if_any(const SavedState& state, const char* name) {
  const double* const found = value_at(state.numbers, name);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

}  // namespace

BestMetric::BestMetric(BestOptions options) : options_(std::move(options)) {
  const std::string& name = options_.metric;
  const bool is_name = !name.empty() && printable(name) == name && !name.ends_with('/');
  const bool is_delta = options_.min_delta >= 0 && std::isfinite(options_.min_delta);
  if (!is_name || options_.patience < 0 || !is_delta) {
    throw invalid_argument(
        "checkpoints: expected a best with a printable name, patience and a finite min_delta of 0 "
        "or more, got '",
        printable(name),
        "', ",
        options_.patience,
        " and ",
        options_.min_delta,
        "; a larger metric is better with larger_is_better");
  }
}

bool BestMetric::is_better_than(double value, const std::optional<double>& than, double by) const {
  const double bar = than.value_or(0) + (options_.larger_is_better ? by : -by);
  return std::isfinite(value) && (!than || is_better(value, bar, options_.larger_is_better));
}

bool BestMetric::take(int64_t step, double value) {
  last_step_ = step;
  last_ = value;
  const bool is_progress = is_better_than(value, reference_, options_.min_delta);
  bad_ = is_progress ? 0 : bad_ + 1;
  if (is_progress)
    reference_ = value;
  if (!is_better_than(value, best_, 0))
    return false;
  best_ = value;
  best_step_ = step;
  return true;
}

std::optional<CheckpointMetric> BestMetric::of_step(int64_t step) const {
  if (step != last_step_)
    return std::nullopt;
  CheckpointMetric metric{.name = options_.metric, .larger_is_better = options_.larger_is_better};
  if (std::isfinite(last_))
    metric.value = last_;
  return metric;
}

std::string BestMetric::kind() const {
  return cat(options_.larger_is_better ? "largest " : "smallest ", options_.metric);
}

SavedState BestMetric::state() const {
  SavedState state{.numbers = {{kind(), 1},
                               {kBestStep, as_number(best_step_)},
                               {kBad, as_number(bad_)},
                               {kLast, last_},
                               {kLastStep, as_number(last_step_ + 1)}}};
  put_if_any(state, kBest, best_);
  put_if_any(state, kReference, reference_);
  return state;
}

void BestMetric::load_state(const SavedState& state) {
  const char* const owner = "checkpoints: best";
  state.number(owner, kind());
  best_step_ = state.whole_number(owner, kBestStep);
  bad_ = state.whole_number(owner, kBad);
  last_ = state.number(owner, kLast);
  last_step_ = state.whole_number(owner, kLastStep) - 1;
  best_ = number_if_any(state, kBest);
  reference_ = number_if_any(state, kReference);
}

Strings BestMetric::needed_numbers() const {
  return {kind()};
}

double of_rank0(double number, ProcessGroup& group) {
  Tensor shared = at::full({1}, number, kDouble);
  if (group.size() > 1)
    group.broadcast(shared, 0);
  return shared.item<double>();
}

}  // namespace muster
