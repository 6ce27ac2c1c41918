// Objects are known by their addresses. A later object may get the address of one that is gone, so
// each Checkpoints forgets its own at its end.
#include "muster/checkpoint/training/resumed_objects.h"

#include <optional>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

ResumedObjects& ResumedObjects::of_process() {
  static auto& one = *new ResumedObjects;  // never destroyed: a program may end in any order
  return one;
}

void ResumedObjects::note_restored(const void* training, int64_t step, Addresses restored) {
  const Lock lock(mutex_);
  Training& its = trainings_[training];
  its.step = step;
  its.restored = std::move(restored);
}

// A Checkpoints is here from its first part on, whether it restores anything or not.
void ResumedObjects::add(const void* training, const void* part) {
  const Lock lock(mutex_);
  Training& its = trainings_[training];
  if (its.restored.empty())
    its.parts.insert(part);
}

void ResumedObjects::forget(const void* training) {
  const Lock lock(mutex_);
  trainings_.erase(training);
}

void ResumedObjects::warn_if_left_out(const std::string& kind,
                                      const std::string& beside,
                                      const void* part,
                                      const Addresses& of) const {
  std::optional<int64_t> step;  // of a training that restored one of `of`
  {
    // The mutex is free before the warning, since a program's log may ask again.
    const Lock lock(mutex_);
    for (const auto& [checkpoints, training] : trainings_) {
      if (training.parts.contains(part))
        return;
      if (any_of(of, [&](const void* object) { return training.restored.contains(object); }))
        step = training.step;
    }
  }
  if (!step)
    return;
  log_warning(
      kind,
      ": expected to be a part of the Checkpoints that resumed ",
      beside,
      " after step ",
      *step,
      ", got one that was not added and begins anew; add it before restore(), with .new_parts or "
      ".fresh where it is to begin anew");
}

}  // namespace muster
