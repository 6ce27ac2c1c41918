// The part of a loader (loader.h) that does not depend on the type of its examples: the next
// samples, their order and weight, and the training position.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/data/batch.h"
#include "muster/data/batch_places.h"
#include "muster/data/batch_sampler.h"
#include "muster/data/collate.h"
#include "muster/data/device_copy.h"
#include "muster/data/loader_options.h"
#include "muster/data/prefetch.h"

namespace muster {

// A batch's place among the batches of its step.
struct BatchPlace {
  double weight = 1;
  bool last = true;
  int64_t samples_of_step = 0;  // of all ranks
};

// A step that goes over the ends of epochs, as far as it has come.
struct StepSoFar {
  int64_t batches = 0;
  int64_t samples = 0;  // of the whole step, of all ranks
};

// The workers of a loader whose options say `asked`: without a number 1 on a GPU, and none on the
// CPU, where a worker would take a core from the training thread.
int num_workers(const std::optional<int>& asked, c10::Device device);

// Samples that could not be read.
class BadSamples {
 public:
  void add(int64_t sample, const std::string& why);
  int64_t count() const;
  Int64s all() const;
  // Warns of samples added since the last report.
  void report();

 private:
  mutable std::mutex mutex_;
  Int64s all_;
  int64_t reported_ = 0;
  std::string first_;
};

// What a running epoch and its workers need from the loader; they may outlive it.
template <class Options>
struct SharedWithWorkers {
  explicit SharedWithWorkers(const Options& asked)
      : options(asked),
        copy(asked.device, asked.pin_memory),
        memory(num_workers(asked.workers, asked.device), asked.ahead, copy.pins()) {
    options.workers = num_workers(asked.workers, asked.device);
  }

  PrefetchOptions prefetch_options(bool in_turns) const {
    return {.workers = *options.workers,
            .ahead = options.ahead,
            .timeout = options.timeout,
            .in_turns = in_turns};
  }

  Options options;  // with a number of workers
  DeviceCopy copy;
  BadSamples bad;
  LoaderMemory memory;
};
using LoaderShared = SharedWithWorkers<DataLoaderOptions>;

// Calls its argument with each tensor of the batch, as DeviceCopy wants it.
template <class Data>
auto each_tensor_of(Batch<Data>& batch) {
  return [&batch](const auto& change) {
    for_each_tensor(static_cast<Data&>(batch), change);
  };
}

// What the iterators of all loaders have: the batch that was handed out last, or none at the end.
template <class Batch>
class BatchIterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  const Batch& operator*() const { return *batch_; }
  const Batch* operator->() const { return &*batch_; }
  bool operator==(std::default_sentinel_t) const { return !batch_; }

 protected:
  std::optional<Batch> batch_;
};

// A loop over one epoch, as all ranks number it.
struct LoopStart {
  int64_t loop = 0;  // of the loader's in training; 0: nothing is compared
  int64_t step = 0;  // of the loader, before the loop
};

class LoaderCore {
 public:
  // Throws: invalid_argument for accumulate, workers or ahead out of range, and if the sampler is
  // for another dataset.
  LoaderCore(int64_t dataset_size,
             std::shared_ptr<BatchSampler> sampler,
             const DataLoaderOptions& options);

  const DataLoaderOptions& options() const { return shared_->options; }
  const std::shared_ptr<LoaderShared>& shared() const { return shared_; }
  BatchSampler& sampler() { return *sampler_; }
  const BatchSampler& sampler() const { return *sampler_; }

  // Starts an epoch: the one that the sampler was set to, or else the next.
  EpochBatches start();
  // Whether the next start() returns what `epoch.next` returns: the sampler was not moved, and the
  // shares were not changed.
  bool goes_on_after(const EpochBatches& epoch) const;
  // Call it before the start() of a loop over one epoch: where steps() ended is gone on with.
  void begin_epoch();
  // Call it before the start() of steps(): the next start() resumes at the training position.
  void begin_steps();
  // The next start() resumes at the training position.
  void go_on();
  // A loop over one epoch has ended, or was left: the next loop starts the next epoch, and so does
  // a resumed one. If the job stops (own_loaders.h), training stays where it is: it is to go on
  // there. Ranks that have taken other numbers of steps are told of it. Blocking: for the store.
  void leave_epoch(const EpochBatches& epoch, const LoopStart& start);
  // A loop over one epoch begins.
  LoopStart enter_epoch(const EpochBatches& epoch);
  // A loop over steps() to step `until` begins, of data that are divided over so many ranks. Ranks
  // that go to another step are told of it. Blocking: for the store.
  void enter_steps(int64_t ranks, int64_t until);
  // The epoch that the next begin() starts.
  int64_t epoch() const;
  // `steps`: how many there are to be; less than 0: the epoch's. Throws: failed_precondition where
  // gradients are computed and ranks have different numbers of batches, so that one would go on to
  // the next epoch alone.
  void check_even(const EpochBatches& epoch, int64_t steps) const;
  // Does nothing if restore() or a loop over steps has led to the middle of this epoch.
  void set_epoch(int64_t epoch);
  // Takes effect at the next start(), or at the next step.
  void set_shares(Int64s shares) { new_shares_ = std::move(shares); }
  // Whether the step that ended is the last with the old shares; the current epoch must then be
  // restarted.
  bool shares_are_due() const { return !new_shares_.empty() && step_ended_; }
  // Whether the batch that was handed out last is not the last of its step.
  bool is_within_step() const { return !step_ended_; }
  BatchPlace place_of(const EpochBatches& epoch, int64_t batch) const;
  // Where every step has `accumulate` batches, over the ends of epochs. The batch is the next one
  // of `step`.
  BatchPlace place_in(StepSoFar& step, const EpochBatches& epoch, int64_t batch) const;
  // Of all ranks, in the batch's step.
  int64_t samples_of_step(const EpochBatches& epoch, int64_t batch) const;
  // Of all ranks, in the first step of a whole epoch; 0: there is none.
  int64_t global_batch() const;

  // An epoch has ended; moves to the start of the next. Throws: failed_precondition for a whole
  // epoch without batches, which would loop forever.
  void end_epoch(const EpochBatches& epoch);
  // Throws: failed_precondition for a whole epoch without a batch of this rank.
  void check_not_empty(const EpochBatches& epoch) const;
  // Records that a batch was handed out.
  void note_batch(const EpochBatches& epoch,
                  int64_t batch,
                  int64_t samples,
                  const BatchPlace& place);
  void note_stall(std::chrono::nanoseconds stall);
  const DataPosition& position() const { return position_; }
  void restore(const DataPosition& position);
  LoaderStats stats() const;

 private:
  void compare_with_ranks();
  void go_on_after_steps();
  bool is_loop_compared(int64_t ranks);
  int64_t samples_of_whole_step(const EpochBatches& epoch, int64_t batch) const;

  std::shared_ptr<LoaderShared> shared_;
  std::shared_ptr<BatchSampler> sampler_;
  DataPosition position_;
  LoaderStats stats_;
  Int64s new_shares_;
  bool step_ended_ = true;
  bool is_compared_ = false;
  bool within_steps_ = false;  // the last loop was one over steps()
  int64_t number_ = 0;         // among the job's loaders that are trained on; 0: it is none of them
  int64_t loops_ = 0;          // over one epoch, in training
  int64_t step_loops_ = 0;     // over steps(), in training
};

// A loop over one epoch while it lives. One that an exception ends has not left the epoch: what is
// saved then loses no sample.
class LoopOverEpoch : NoCopy {
 public:
  LoopOverEpoch(LoaderCore& core, EpochBatchesPtr epoch)
      : core_(core), epoch_(std::move(epoch)), start_(core.enter_epoch(*epoch_)) {}
  ~LoopOverEpoch() {
    if (std::uncaught_exceptions() == exceptions_)
      core_.leave_epoch(*epoch_, start_);
  }

 private:
  LoaderCore& core_;
  EpochBatchesPtr epoch_;
  const LoopStart start_;
  const int exceptions_ = std::uncaught_exceptions();
};

// Call it as an epoch begins. Throws: failed_precondition if the data set's size has changed.
void check_same_size(int64_t expected, int64_t size);
// Throws: failed_precondition if gradients are computed and a weight other than 1 was not read.
void check_weight_read(const StepWeight& weight, int64_t batch);

// Call it in a handler: rethrows the exception with `where` in front. `code`: of one that has none.
[[noreturn]] void fail_within(const std::string& where, ErrorCode code);
// The same with `what`, or the sample and the worker.
[[noreturn]] void fail_loading(const std::string& what);
[[noreturn]] void fail_sample(int64_t sample, const WorkerPlace& place);
[[noreturn]] void fail_batch(const Int64s& samples, const WorkerPlace& place);
// No sample of the batch could be read, and none of the `tried` after them.
[[noreturn]] void fail_empty_batch(const Int64s& samples, int64_t tried, const WorkerPlace& place);
// Without the frames of LibTorch's stack.
std::string text_of_current_exception();

}  // namespace muster
