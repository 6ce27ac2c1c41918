// How the training of this process was resumed. Checkpoints notes it; a TrainStep and Metrics that
// were not added to the checkpoints ask, to count on and to make room for steps that come again.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

namespace muster {

// How the training goes on after a call of Checkpoints::restore().
enum class Beginning {
  anew,           // nothing was asked for or found: a new training
  again,          // restarted ranks found nothing: the training of the attempt before begins again
  from_saved_one  // a saved state was loaded
};

class ResumedTraining {
 public:
  // The one of this process, where those that were not added to each other meet.
  static ResumedTraining& of_process();

  // On every rank. `attempt` is that of CheckpointsOptions; 0 for a step: the training begins
  // again.
  void note(int64_t step, int attempt);

  // After which step the training that was resumed last goes on; 0: none was resumed.
  int64_t step() const;
  // How often one was resumed.
  int64_t times() const;

 private:
  mutable std::mutex mutex_;
  int64_t step_ = 0;
  std::optional<int> attempt_;  // that step_ is of
  int64_t times_ = 0;
};

}  // namespace muster
