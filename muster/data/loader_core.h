// The part of a loader (loader.h) that does not depend on the type of its examples: which samples come next,
// in what order, with what weight, and where training is in them.
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

// A batch's place among those of its step.
struct BatchPlace {
  double weight = 1;
  bool last = true;
};

// Samples that could not be read.
class BadSamples {
 public:
  void add(int64_t sample, const std::string& why);
  int64_t count() const;
  // Warns of those since the last time.
  void report();

 private:
  mutable std::mutex mutex_;
  int64_t count_ = 0;
  int64_t reported_ = 0;
  std::string first_;
};

// What a running epoch and its workers need of the loader; they may outlive it.
struct LoaderShared {
  DataLoaderOptions options;
  BadSamples bad;
};

class LoaderCore {
 public:
  // Throws: invalid_argument for accumulate, workers or ahead out of range, and when the sampler is for
  // another data set.
  LoaderCore(int64_t dataset_size, std::shared_ptr<BatchSampler> sampler, const DataLoaderOptions& options);

  const DataLoaderOptions& options() const { return shared_->options; }
  const std::shared_ptr<LoaderShared>& shared() const { return shared_; }
  BatchSampler& sampler() { return *sampler_; }
  const BatchSampler& sampler() const { return *sampler_; }

  // An epoch begins: the one that the sampler was put to, or else the next.
  EpochBatches start();
  // The next start() gives what `epoch.next` gives: nobody has put the sampler elsewhere, or changed shares.
  bool goes_on_after(const EpochBatches& epoch) const;
  // The next start() begins where training is.
  void go_on();
  // That the next start() begins.
  int64_t epoch() const { return sampler_->epoch() + (sampler_->started() ? 1 : 0); }
  // Changes nothing in the midst of this very epoch, where restore() has led.
  void set_epoch(int64_t epoch);
  // From the next start() on, or the next step.
  void set_shares(std::vector<int64_t> shares) { new_shares_ = std::move(shares); }
  // The step that has ended is the last with the shares before; an epoch under way has to be started again.
  bool shares_are_due() const { return !new_shares_.empty() && step_ended_; }
  BatchPlace place_of(const EpochBatches& epoch, int64_t batch) const;
  // Of all ranks, in the step that the batch belongs to.
  int64_t samples_of_step(const EpochBatches& epoch, int64_t batch) const;

  // An epoch is over, and training is at the beginning of the next. Throws: failed_precondition for a whole
  // epoch without a batch: it would be gone through for ever.
  void end_epoch(const EpochBatches& epoch);
  // A batch is handed out.
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

// Throws: failed_precondition, when gradients are computed and a batch's weight that is not 1 was not read.
void check_weight_read(const StepWeight& weight, int64_t batch);

// From within a handler: throws the exception again, with `what`, or the sample and the worker, in front.
[[noreturn]] void fail_loading(const std::string& what);
[[noreturn]] void fail_sample(int64_t sample, const WorkerPlace& place);
[[noreturn]] void fail_batch(const std::vector<int64_t>& samples, const WorkerPlace& place);
// None of them could be read.
[[noreturn]] void fail_empty_batch(const std::vector<int64_t>& samples, const WorkerPlace& place);
std::string text_of_current_exception();

}  // namespace muster
