// Epochs in a row, for workers that run ahead of training: batch numbers go on across epochs.
// Epochs are made when a worker first asks for one, and forgotten when training has passed them.
// `steps_left_` ends the line where steps() ends.
#include "muster/data/epoch_line.h"

#include <algorithm>
#include <utility>

#include "muster/base/functions.h"
#include "muster/base/lock.h"

namespace muster {

// A line without a number of steps has one epoch, and ends with it.
EpochLine::EpochLine(EpochBatches first, int64_t steps, int64_t accumulate, Callback before_next)
    : before_next_(std::move(before_next)), accumulate_(accumulate) {
  if (steps < 0)
    first.next = nullptr;
  steps_left_ = steps < 0 ? INT64_MAX : steps;
  append(std::move(first), 0);
}

// The last epoch is cut where the steps end.
void EpochLine::append(EpochBatches epoch, int64_t begin) {
  const int64_t steps = epoch.size / accumulate_ + (epoch.size % accumulate_ != 0 ? 1 : 0);
  const int64_t batches = steps <= steps_left_ ? epoch.size : steps_left_ * accumulate_;
  steps_left_ -= std::min(steps, steps_left_);
  parts_.push_back(
      {std::make_shared<const EpochBatches>(std::move(epoch)), begin, begin + batches});
}

// False: there is no next epoch, or one without batches, which would not end.
bool EpochLine::grow() {
  const Part last = parts_.back();
  if (steps_left_ == 0 || !last.epoch->next)
    return false;
  if (before_next_)
    before_next_();
  EpochBatches next = last.epoch->next();
  if (next.size == 0)
    return false;
  append(std::move(next), last.end);
  return true;
}

// Any worker may call this. The lock is held while an epoch is made, so each is made once.
EpochLine::Place EpochLine::at(int64_t number) {
  const Lock lock(mutex_);
  while (number >= parts_.back().end)
    if (!grow())
      return {};
  const auto part = std::ranges::upper_bound(parts_, number, {}, &Part::end);
  return {part->epoch, number - part->begin};
}

// The last epoch stays, since the next one is made from it.
void EpochLine::forget_before(int64_t number) {
  const Lock lock(mutex_);
  while (parts_.size() > 1 && parts_.front().end <= number)
    parts_.pop_front();
}

}  // namespace muster
