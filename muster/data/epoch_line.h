// The batches of consecutive epochs, numbered consecutively, so that workers can start the next
// epoch while the training thread is in this one. Used by the loader (loader.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "muster/data/batch_sampler.h"

namespace muster {

class EpochLine {
 public:
  // A batch of an epoch; without an epoch there is no batch.
  struct Place {
    EpochBatchesPtr epoch{};
    int64_t batch = 0;
  };

  // Starts at the first batch of `first` and covers `steps` steps, each of `accumulate` batches
  // except an epoch's last; negative: only `first`. Ends earlier before an epoch that is not known
  // in advance or has no batches. `before_next` is called before an epoch after the first is made,
  // by the thread that is the first to ask for a batch of it, which gets what it throws.
  EpochLine(EpochBatches first,
            int64_t steps,
            int64_t accumulate,
            std::function<void()> before_next = {});

  EpochBatchesPtr first() const { return parts_.front().epoch; }
  // The place of the `number`-th batch, from 0, which must not be forgotten. Called by several
  // threads.
  Place at(int64_t number);
  // Forgets epochs that end before this batch.
  void forget_before(int64_t number);

 private:
  struct Part {
    EpochBatchesPtr epoch;
    int64_t begin = 0;  // the number of its first batch
    int64_t end = 0;    // the number after its last batch, or after the last step
  };

  void append(EpochBatches epoch, int64_t begin);
  bool grow();

  std::mutex mutex_;
  std::deque<Part> parts_;
  std::function<void()> before_next_;
  int64_t accumulate_;
  int64_t steps_left_;  // after the last part
};

}  // namespace muster
