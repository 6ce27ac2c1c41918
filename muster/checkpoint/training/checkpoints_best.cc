// The part of Checkpoints that compares checkpoints by a metric.
#include "muster/checkpoint/training/checkpoints.h"

#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/best_metric.h"
#include "muster/checkpoint/training/training.h"

namespace muster {

BestMetric& Checkpoints::metric() {
  if (best_)
    return *best_;
  throw Error(ErrorCode::failed_precondition,
              "checkpoints: expected .best in the options, which says whether a larger value is "
              "better, got none; set it, as .best = {{.metric = \"loss\"}}");
}

bool Checkpoints::take_value(int64_t step, double value) {
  return metric().take(step, of_rank0(value, group()));
}

// The checkpoint has the state in which it is the best. If it cannot be saved, the one before stays
// that.
bool Checkpoints::save_if_best(int64_t step, double value) {
  const BestMetric before = metric();
  if (!take_value(step, value))
    return false;
  try {
    save(step);
  } catch (...) {
    *best_ = before;
    throw;
  }
  return true;
}

std::string Checkpoints::save(int64_t step, double value) {
  const BestMetric before = metric();
  take_value(step, value);
  try {
    return save(step);
  } catch (...) {
    *best_ = before;
    throw;
  }
}

bool Checkpoints::stops_early() const {
  return best_ && best_->stops_early();
}

std::optional<BestSaved> Checkpoints::best() const {
  if (!best_ || !best_->value())
    return std::nullopt;
  const std::string path = cat(training_->options().folder, "/step-", best_->step());
  return BestSaved{.path = path, .step = best_->step(), .value = *best_->value()};
}

}  // namespace muster
