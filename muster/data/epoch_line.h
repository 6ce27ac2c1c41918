// The batches of one epoch after the other, numbered through: so that workers go on into the next epoch
// while the training thread is in this one. Used by the loader (loader.h).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "muster/data/batch_sampler.h"

namespace muster {

class EpochLine {
 public:
  // A batch of an epoch; without an epoch there is none.
  struct Place {
    std::shared_ptr<const EpochBatches> epoch = {};
    int64_t batch = 0;
  };

  // From the first batch of `first` over `steps` steps, of `accumulate` batches each but an epoch's last;
  // less than 0: `first` alone. It ends earlier before an epoch that is not known beforehand, or has no
  // batch.
  EpochLine(EpochBatches first, int64_t steps, int64_t accumulate);

  std::shared_ptr<const EpochBatches> first() const { return parts_.front().epoch; }
  // The place of the `number`-th batch, from 0, which is none of those that are forgotten. Called by several
  // threads.
  Place at(int64_t number);
  // Epochs that end before this batch.
  void forget_before(int64_t number);

 private:
  struct Part {
    std::shared_ptr<const EpochBatches> epoch;
    int64_t begin = 0;  // the number of its first batch
    int64_t end = 0;    // of the batch after its last, or after the last step
  };

  void append(EpochBatches epoch, int64_t begin);
  bool grow();

  std::mutex mutex_;
  std::deque<Part> parts_;
  int64_t accumulate_;
  int64_t steps_left_;  // after the last part
};

}  // namespace muster
