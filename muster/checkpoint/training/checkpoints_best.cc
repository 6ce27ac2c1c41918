// The part of Checkpoints that compares checkpoints by a metric.
#include "muster/checkpoint/training/checkpoints.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/best_metric.h"
#include "muster/checkpoint/training/stores.h"
#include "muster/checkpoint/training/training.h"

namespace muster {

BestMetric& Checkpoints::metric() {
  if (best_)
    return *best_;
  throw failed_precondition(
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
  take_folder();
  if (!take_value(step, value))
    return false;
  save_from(step, &before);
  return true;
}

std::string Checkpoints::save(int64_t step, double value) {
  const BestMetric before = metric();
  take_value(step, value);
  return save_from(step, &before);
}

// What is written in the background may fail later, when another save has already taken a value.
void Checkpoints::finish_write() {
  try {
    store().finish();
  } catch (...) {
    if (best_before_write_)
      *best_ = *std::exchange(best_before_write_, nullptr);
    throw;
  }
  best_before_write_.reset();
}

std::string Checkpoints::save_from(int64_t step, const BestMetric* before) {
  finish_write();
  try {
    branch_->path = write(step);
  } catch (...) {
    if (before != nullptr)
      *best_ = *before;
    throw;
  }
  if (before != nullptr)
    best_before_write_ = std::make_unique<BestMetric>(*before);
  return branch_->path;
}

bool Checkpoints::stops_early() const {
  return best_ && best_->stops_early();
}

// Empty where no value was taken.
std::string Checkpoints::best_path() const {
  if (!best_ || !best_->value())
    return "";
  return cat(training_->options().folder, "/step-", best_->step());
}

std::optional<BestSaved> Checkpoints::best() const {
  if (!best_ || !best_->value())
    return std::nullopt;
  return BestSaved{.path = best_path(), .step = best_->step(), .value = *best_->value()};
}

}  // namespace muster
