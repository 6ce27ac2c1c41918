// The part of a loader (loader.h) that does not depend on the type of its examples: the next samples, their
// order and weight, and the training position.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "muster/data/batch.h"
#include "muster/data/batch_sampler.h"
#include "muster/data/loader_options.h"
#include "muster/data/prefetch.h"

namespace muster {

// A batch's place among the batches of its step.
struct BatchPlace {
  double weight = 1;
  bool last = true;
};

// Samples that could not be read.
class BadSamples {
 public:
  void add(int64_t sample, const std::string& why);
  int64_t count() const;
  // Warns of samples added since the last report.
  void report();

 private:
  mutable std::mutex mutex_;
  int64_t count_ = 0;
  int64_t reported_ = 0;
  std::string first_;
};

// What a running epoch and its workers need from the loader; they may outlive it.
struct LoaderShared {
  DataLoaderOptions options;
  BadSamples bad;
};

class LoaderCore {
 public:
  // Throws: invalid_argument for accumulate, workers or ahead out of range, and if the sampler is for another
  // dataset.
  LoaderCore(int64_t dataset_size, std::shared_ptr<BatchSampler> sampler, const DataLoaderOptions& options);

  const DataLoaderOptions& options() const { return shared_->options; }
  const std::shared_ptr<LoaderShared>& shared() const { return shared_; }
  BatchSampler& sampler() { return *sampler_; }
  const BatchSampler& sampler() const { return *sampler_; }

  // Starts an epoch: the one that the sampler was set to, or else the next.
  EpochBatches start();
  // Whether the next start() returns what `epoch.next` returns: the sampler was not moved, and the shares
  // were not changed.
  bool goes_on_after(const EpochBatches& epoch) const;
  // The next start() resumes at the training position.
  void go_on();
  // The epoch that the next start() starts.
  int64_t epoch() const { return sampler_->epoch() + (sampler_->started() ? 1 : 0); }
  // Does nothing if restore() has led to the middle of this epoch.
  void set_epoch(int64_t epoch);
  // Takes effect at the next start(), or at the next step.
  void set_shares(std::vector<int64_t> shares) { new_shares_ = std::move(shares); }
  // Whether the step that ended is the last with the old shares; the current epoch must then be restarted.
  bool shares_are_due() const { return !new_shares_.empty() && step_ended_; }
  BatchPlace place_of(const EpochBatches& epoch, int64_t batch) const;
  // Of all ranks, in the batch's step.
  int64_t samples_of_step(const EpochBatches& epoch, int64_t batch) const;

  // An epoch has ended; moves to the start of the next. Throws: failed_precondition for a whole epoch without
  // batches, which would loop forever.
  void end_epoch(const EpochBatches& epoch);
  // Records that a batch was handed out.
  void note_batch(const EpochBatches& epoch, int64_t batch, int64_t samples, bool last);
  void note_stall(std::chrono::nanoseconds stall);
  const DataPosition& position() const { return position_; }
  void restore(const DataPosition& position);
  LoaderStats stats() const;

 private:
  std::shared_ptr<LoaderShared> shared_;
  std::shared_ptr<BatchSampler> sampler_;
  DataPosition position_;
  LoaderStats stats_;
  std::vector<int64_t> new_shares_;
  bool step_ended_ = true;
};

// Throws: failed_precondition if gradients are computed and a weight other than 1 was not read.
void check_weight_read(const StepWeight& weight, int64_t batch);

// Call it in a handler: rethrows the exception with `what`, or the sample and the worker, in front.
[[noreturn]] void fail_loading(const std::string& what);
[[noreturn]] void fail_sample(int64_t sample, const WorkerPlace& place);
[[noreturn]] void fail_batch(const std::vector<int64_t>& samples, const WorkerPlace& place);
// No sample of the batch could be read.
[[noreturn]] void fail_empty_batch(const std::vector<int64_t>& samples, const WorkerPlace& place);
std::string text_of_current_exception();

}  // namespace muster
