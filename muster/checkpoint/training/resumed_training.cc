// A process may have several trainings, each with checkpoints of its own. Of one attempt of its
// ranks, a training that goes on from a step says more than another that begins again.
#include "muster/checkpoint/training/resumed_training.h"
#include "muster/base/lock.h"

namespace muster {

ResumedTraining& ResumedTraining::of_process() {
  static auto& one = *new ResumedTraining;  // never destroyed: threads may still ask
  return one;
}

// All ranks of a process note it, also those that are threads.
void ResumedTraining::note(int64_t step, int attempt) {
  const Lock lock(mutex_);
  ++times_;
  const bool begins_again = step == 0;
  if (begins_again && attempt_ == attempt)
    return;
  step_ = step;
  attempt_ = attempt;
}

int64_t ResumedTraining::step() const {
  const Lock lock(mutex_);
  return step_;
}

int64_t ResumedTraining::times() const {
  const Lock lock(mutex_);
  return times_;
}

}  // namespace muster
