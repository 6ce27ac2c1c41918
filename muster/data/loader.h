// Loads batches of a dataset in a sampler's order onto the rank's device; worker threads prepare
// them ahead. It replaces LibTorch's DataLoader, which cannot be restarted after an early break,
// and whose distributed sampler repeats its order.
//
// On a GPU there is one worker by default. It reads, collates and pins the batches; the thread of
// the loop only queues their copies, of which two are under way while the GPU computes, and waits
// for nothing but a worker that is late. A dataset's get() is then called on the worker's thread.
//
//   for (const auto& batch : loader.steps(1000)) {
//     const auto guard = model.no_sync_if(!batch.last);
//     (mean_loss_of(batch) * batch.weight).backward();
//     if (batch.last) step();
//   }
#pragma once

#include <c10/core/GradMode.h>

#include <concepts>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/never.h"
#include "muster/data/collate.h"
#include "muster/data/dataset.h"
#include "muster/data/device_copy.h"
#include "muster/data/epoch_line.h"
#include "muster/data/load_batch.h"
#include "muster/data/loader_core.h"

namespace muster {

// `D` is a Dataset (dataset.h), or a type with Example, size() and get() like it. The loader keeps
// a copy, or shares the dataset that it is given as a std::shared_ptr (`Given`).
//
// A loader can be moved, also while a loop over it runs, but it cannot be copied: a position is one
// loader's. Checkpoints keep its place in memory: move it before it is added to them.
template <class D>
class DataLoader {
 public:
  using Data = decltype(loading::joined_example(std::declval<const D&>()));
  using Batch = muster::Batch<Data>;

  // In the dataset's order, all of it on every rank: ctx.loader divides it. Throws:
  // invalid_argument if batch_size or accumulate is less than 1.
  template <class Given>
    requires std::same_as<DatasetOf<Given>, D>
  DataLoader(Given dataset, const DataLoaderOptions& options)
      : DataLoader(shared_dataset(std::move(dataset)), options, Whole()) {}

  // In the order of `sampler`, which must outlive the loader. Every begin() starts the epoch set by
  // sampler.set_epoch(). Throws: invalid_argument also if the sampler has another length, or
  // another share for this rank.
  template <class Given>
    requires std::same_as<DatasetOf<Given>, D>
  DataLoader(Given dataset, DistributedSampler& sampler, const DataLoaderOptions& options)
      : DataLoader(shared_dataset(std::move(dataset)),
                   std::shared_ptr<DistributedSampler>(std::shared_ptr<void>(), &sampler),
                   options) {}
  // The loader owns the sampler: every begin() moves on to the next epoch.
  DataLoader(std::shared_ptr<const D> dataset,
             std::shared_ptr<DistributedSampler> sampler,
             const DataLoaderOptions& options)
      : DataLoader(
            dataset,
            batches_of(
                named_for(*dataset, std::move(sampler)), options.batch_size, options.drop_last),
            options) {}
  // Takes batches from a custom sampler; `batch_size` and `drop_last` are then ignored.
  DataLoader(std::shared_ptr<const D> dataset,
             std::shared_ptr<BatchSampler> sampler,
             const DataLoaderOptions& options)
      : state_(std::make_unique<State>(std::move(dataset), std::move(sampler), options)) {}

 private:
  // Where its iterators find it, wherever the loader is moved.
  struct State {
    State(std::shared_ptr<const D> data,
          std::shared_ptr<BatchSampler> sampler,
          const DataLoaderOptions& options)
        : dataset(std::move(data)), core(dataset->size(), std::move(sampler), options) {}
    std::shared_ptr<const D> dataset;
    LoaderCore core;
  };

 public:
  class Iterator : public BatchIterator<Batch> {
   public:
    Iterator& operator++();
    void operator++(int) { ++*this; }
    int64_t epoch() const { return epoch_->epoch; }  // of the batch

   private:
    friend class DataLoader;
    using BatchIterator<Batch>::batch_;
    struct Coming {  // a batch that is on its way to the device
      Batch batch;
      DeviceCopy::Started copy;
      BatchPlace place;
      bool stands_in = false;
    };

    Iterator(State& state, int64_t until_step, bool whole_steps = false)
        : loader_(&state), until_step_(until_step), has_whole_steps_(whole_steps) {
      until_step >= 0 ? state.core.begin_steps() : state.core.begin_epoch();
      if (!is_over())
        start();
      if (until_step < 0)
        loop_ = std::make_unique<LoopOverEpoch>(state.core, epoch_);
      else
        state.core.enter_steps(ranks(), until_step);
      advance();
    }
    bool is_over() const {
      return until_step_ >= 0 && loader_->core.position().step >= until_step_;
    }
    // A loop that is over as it begins has no epoch.
    int64_t ranks() const {
      return epoch_ ? epoch_->ranks : loader_->core.sampler().whole_epoch().ranks;
    }
    void start();
    void advance();
    void take_next();
    void stage_ahead();
    bool begin_next_epoch();
    void stage(const EpochLine::Place& place, const Prefetch::Thing& thing);
    std::shared_ptr<EpochLine> line_of(int64_t steps) const;
    void hand_out(Coming now);
    int64_t batch_of_epoch() const { return number_ - epoch_begin_; }  // the next

    State* loader_;
    int64_t until_step_;  // over epochs, to this step; -1: this epoch
    bool has_whole_steps_;
    StepSoFar step_;         // that of the batch handed out, if steps go over the ends of epochs
    StepSoFar staged_step_;  // that of the batch staged last
    std::unique_ptr<LoopOverEpoch> loop_;
    std::shared_ptr<EpochLine> line_;
    std::shared_ptr<const EpochBatches> epoch_;
    int64_t epoch_begin_ = 0;  // the line's number of its first batch
    int64_t number_ = 0;       // of the next batch
    int64_t staged_ = 0;       // of the next to be staged
    std::deque<Coming> coming_;
    bool stands_in_ = false;  // it does
    std::unique_ptr<Prefetch> prefetch_;
  };

  // Starts an epoch, or goes on in one that steps() has begun. You can start any number of them and
  // leave them early: no worker outlives its iterator. An epoch that is left is over, here and
  // after a resume; but not if the job has been asked to stop (Context::should_stop), nor by an
  // exception. Throws: failed_precondition if the data set's size has changed, and in training, if
  // ranks have different numbers of batches (pad = false).
  Iterator begin() & { return {*state_, -1}; }
  std::default_sentinel_t end() const { return {}; }

  // Iterates from the current step to step `until`, counted from the start of training, over as
  // many epochs as needed. The loader must live as long. Ranks of a job that go to other steps are
  // warned of it. Throws: as begin(), unless the steps end before the first rank's epoch.
  auto steps(int64_t until) & { return Steps{*state_, until, false}; }
  // The same, but every step has `accumulate` batches: what an epoch lacks of its last step is
  // taken from the next epoch. No sample is left out, and a step's batches can be paired with those
  // of another loader (ZipLoaders).
  auto whole_steps(int64_t until) & { return Steps{*state_, until, true}; }

  // The epoch that the next begin() starts or goes on in. Where restore() or steps() have led to
  // the middle of the epoch that is set, it goes on there.
  int64_t epoch() const { return state_->core.epoch(); }
  void set_epoch(int64_t epoch) { state_->core.set_epoch(epoch); }

  // The training position after the last whole step; the batch handed out last counts as done. Save
  // it with a checkpoint and restore it in a job with any number of ranks: no sample is lost or
  // repeated. Throws: as DistributedSampler::set_epoch.
  const DataPosition& position() const { return state_->core.position(); }
  void restore(const DataPosition& position) { state_->core.restore(position); }
  // Whether the batch handed out last is not the last of its step.
  bool is_within_step() const { return state_->core.is_within_step(); }

  // Sets how many samples of each global batch every rank takes; the global batches stay the same.
  // Takes effect at the next begin(), or within steps() at the next step. All ranks must pass the
  // same shares (rebalance.h). Throws: when it takes effect: invalid_argument for shares below 1;
  // failed_precondition if their sum changes.
  void set_shares(std::vector<int64_t> shares) { state_->core.set_shares(std::move(shares)); }

  // Samples and batches of a whole epoch on this rank, without what drop_last drops.
  int64_t num_samples() const;
  int64_t num_batches() const { return state_->core.sampler().whole_epoch().size; }
  const D& dataset() const { return *state_->dataset; }
  LoaderStats stats() const { return state_->core.stats(); }
  // The indices of those that skip_bad has skipped since the loader was made.
  std::vector<int64_t> bad_samples() const { return state_->core.shared()->bad.all(); }
  // Batches of a step.
  int64_t accumulate() const { return state_->core.options().accumulate; }
  // Samples of a whole step, of all ranks together.
  int64_t global_batch() const { return state_->core.global_batch(); }

  // Reads these samples as one batch on the loader's device, apart from its order, its position and
  // its stats. Throws: as the dataset's get().
  Batch batch_of(const std::vector<int64_t>& samples) const;

 private:
  struct Steps {
    State& loader;
    int64_t until;
    bool whole;
    Iterator begin() { return {loader, until, whole}; }
    std::default_sentinel_t end() const { return {}; }
  };
  struct Whole {};
  DataLoader(const std::shared_ptr<const D>& dataset, const DataLoaderOptions& options, Whole)
      : DataLoader(
            dataset, std::make_shared<DistributedSampler>(in_order(dataset->size())), options) {}

  static std::shared_ptr<DistributedSampler> named_for(
      const D& dataset, std::shared_ptr<DistributedSampler> sampler) {
    if constexpr (HasIdentity<D>)
      sampler->set_data(dataset.identity());
    return sampler;
  }

  std::unique_ptr<State> state_;
};

// What is no dataset: the text is the compiler's whole answer.
template <class D>
  requires(!IsDataset<D>)
class DataLoader<D> {
  static_assert(
      kNever<D>,
      "a DataLoader takes a dataset (IsDataset): a muster::Dataset, or a type with "
      "Example, size() const, and get(index, rng) const or get_batch(rows, pinned) const, "
      "by value or as a std::shared_ptr; a muster::Stream takes a StreamLoader");

 public:
  DataLoader(const auto& /*given*/, const DataLoaderOptions& /*options*/) {}
  DataLoader(const auto& /*given*/, auto&& /*sampler*/, const DataLoaderOptions& /*options*/) {}
};

template <class D>
int64_t DataLoader<D>::num_samples() const {
  const EpochBatches epoch = state_->core.sampler().whole_epoch();
  int64_t samples = 0;
  for (const int64_t batch : indices_below(epoch.size))
    samples += epoch.count(batch);
  return samples;
}

template <class D>
typename DataLoader<D>::Batch DataLoader<D>::batch_of(const std::vector<int64_t>& samples) const {
  const LoaderCore& core = state_->core;
  LoaderShared shared(core.options());
  const EpochBatches epoch{.samples = [&](int64_t) { return samples; },
                           .seed = core.sampler().whole_epoch().seed};
  WorkerPlace place;
  auto loaded = loading::load(*state_->dataset, epoch, 0, std::nullopt, shared, place);
  const int64_t count = std::ssize(loaded.indices);
  Batch batch{std::move(loaded.data), 1, true, count, std::move(loaded.indices)};
  const auto each = each_tensor_of(batch);
  const DeviceCopy::Started copy = shared.copy.start(each);
  shared.copy.wait(copy, each);
  return batch;
}

template <class D>
void DataLoader<D>::Iterator::start() {
  LoaderCore& core = loader_->core;
  check_same_size(core.position().dataset_size, loader_->dataset->size());
  prefetch_.reset();
  coming_.clear();
  const bool one_epoch = until_step_ < 0;
  const int64_t steps = one_epoch ? -1 : until_step_ - core.position().step;
  line_ = line_of(steps);
  staged_step_ = step_;
  number_ = staged_ = epoch_begin_ = 0;
  epoch_ = line_->first();
  core.check_even(*epoch_, steps);
  const auto make = [dataset = loader_->dataset,
                     line = line_,
                     shared = core.shared(),
                     stream = core.shared()->copy.current_stream()](
                        int64_t number, WorkerPlace& worker) -> Prefetch::Thing {
    const EpochLine::Place place = line->at(number);
    if (!place.epoch)
      return nullptr;
    return std::make_shared<loading::LoadedBatch<Data>>(
        loading::load(*dataset, *place.epoch, place.batch, stream, *shared, worker));
  };
  prefetch_ = std::make_unique<Prefetch>(make,
                                         0,
                                         one_epoch ? epoch_->size : INT64_MAX,
                                         core.shared()->prefetch_options(/*in_turns=*/false));
}

// Steps that go over the ends of epochs are counted in batches, of which the first step may have
// had some.
template <class D>
std::shared_ptr<EpochLine> DataLoader<D>::Iterator::line_of(int64_t steps) const {
  LoaderCore& core = loader_->core;
  const int64_t accumulate = core.options().accumulate;
  const auto before_next = [dataset = loader_->dataset, size = core.position().dataset_size] {
    check_same_size(size, dataset->size());
  };
  if (!has_whole_steps_)
    return std::make_shared<EpochLine>(core.start(), steps, accumulate, before_next);
  constexpr auto kEndless = INT64_MAX;
  const int64_t batches = steps > kEndless / accumulate ? kEndless : steps * accumulate;
  return std::make_shared<EpochLine>(core.start(), batches - step_.batches, 1, before_next);
}

template <class D>
typename DataLoader<D>::Iterator& DataLoader<D>::Iterator::operator++() {
  if (loader_->core.options().check_weight)
    check_weight_read(batch_->weight, batch_of_epoch() - 1);
  advance();
  return *this;
}

template <class D>
void DataLoader<D>::Iterator::stage(const EpochLine::Place& place, const Prefetch::Thing& thing) {
  auto& [data, indices, stands_in] = *static_cast<loading::LoadedBatch<Data>*>(thing.get());
  const int64_t samples = std::ssize(indices);
  const LoaderCore& core = loader_->core;
  const BatchPlace in_step = has_whole_steps_
                                 ? core.place_in(staged_step_, *place.epoch, place.batch)
                                 : core.place_of(*place.epoch, place.batch);
  ++staged_;
  coming_.push_back(
      {Batch{std::move(data), in_step.weight, in_step.last, samples, std::move(indices)},
       nullptr,
       in_step,
       stands_in});
  Coming& set_out = coming_.back();
  set_out.copy = core.shared()->copy.start(each_tensor_of(set_out.batch));
}

// The one that the workers are at already, or one begun anew. False: there is to be none.
template <class D>
bool DataLoader<D>::Iterator::begin_next_epoch() {
  LoaderCore& core = loader_->core;
  const EpochLine::Place next =
      core.goes_on_after(*epoch_) ? line_->at(number_) : EpochLine::Place();
  if (!next.epoch)
    prefetch_.reset();
  core.shared()->bad.report();
  if (until_step_ < 0) {
    if (epoch_->size_of_all == 0 && c10::GradMode::is_enabled())
      core.check_not_empty(*epoch_);  // a training of no steps
    return false;
  }
  // In the middle of a step the training stays at its beginning.
  step_.batches > 0 ? core.check_not_empty(*epoch_) : core.end_epoch(*epoch_);
  if (!next.epoch) {
    start();
    return true;
  }
  check_same_size(core.position().dataset_size, loader_->dataset->size());
  core.start();
  epoch_ = next.epoch;
  core.check_even(*epoch_, until_step_ - core.position().step);
  epoch_begin_ = number_;
  line_->forget_before(number_);
  return true;
}

// In training a batch that stands in for another keeps the ranks together. Evaluation leaves it
// out.
template <class D>
void DataLoader<D>::Iterator::advance() {
  do
    take_next();
  while (batch_ && stands_in_ && !c10::GradMode::is_enabled());
}

// The next ones set out while the one that is taken is computed on. What is not ready, or failed,
// is left for next().
template <class D>
void DataLoader<D>::Iterator::stage_ahead() {
  while (loader_->core.shared()->copy.has_room_after(coming_.size())) {
    const EpochLine::Place place = line_->at(staged_);
    const auto next = place.epoch ? prefetch_->next_if_ready() : std::nullopt;
    if (!next)
      return;
    stage(place, *next);
  }
}

template <class D>
void DataLoader<D>::Iterator::take_next() {
  LoaderCore& core = loader_->core;
  batch_.reset();
  if (is_over()) {
    prefetch_.reset();
    return core.shared()->bad.report();
  }
  const bool is_within = batch_of_epoch() > 0 && batch_of_epoch() < epoch_->size;
  const bool is_anew = core.shares_are_due() || !line_->at(number_).epoch;  // restore() led back
  if (until_step_ >= 0 && is_within && is_anew) {
    core.go_on();
    step_ = {};
    start();
  }
  while (batch_of_epoch() >= epoch_->size)
    if (!begin_next_epoch())
      return;
  if (coming_.empty()) {
    stage({epoch_, batch_of_epoch()}, prefetch_->next());
    core.note_stall(prefetch_->take_stall());
  }
  Coming now = std::move(coming_.front());
  coming_.pop_front();
  stage_ahead();
  hand_out(std::move(now));
}

template <class D>
void DataLoader<D>::Iterator::hand_out(Coming now) {
  LoaderCore& core = loader_->core;
  core.shared()->copy.wait(now.copy, each_tensor_of(now.batch));
  batch_ = std::move(now.batch);
  stands_in_ = now.stands_in;
  core.note_batch(*epoch_, batch_of_epoch(), stands_in_ ? 0 : batch_->samples, now.place);
  ++number_;
  if (has_whole_steps_)
    step_ = now.place.last ? StepSoFar() : StepSoFar{step_.batches + 1, now.place.samples_of_step};
}

template <class Given>
DataLoader(Given, const DataLoaderOptions&) -> DataLoader<DatasetOf<Given>>;
template <class Given>
DataLoader(Given, DistributedSampler&, const DataLoaderOptions&) -> DataLoader<DatasetOf<Given>>;
template <class Given, class Sampler>
DataLoader(Given, std::shared_ptr<Sampler>, const DataLoaderOptions&)
    -> DataLoader<DatasetOf<Given>>;

}  // namespace muster
