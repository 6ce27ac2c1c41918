// Loads batches of a stream (stream.h); worker threads prepare them ahead. Worker k of a rank reads
// the part rank × workers + k, and batches are taken from the workers in turn, so the order is the
// same in every run.
//
//   muster::StreamLoader loader(shards,
//                               {.batch_size = 64, .workers = 4, .rank = rank, .ranks = ranks});
//   for (const auto& batch : loader.steps(1000)) …
//
// On a GPU there is one worker by default, and batches come there as those of a DataLoader
// (loader.h).
//
// Each worker's part is its own; after a resume with other numbers of ranks or workers, the rest of
// that epoch is divided over the new ones. Parts end at different times. A worker at its end is
// skipped, and a rank's epoch ends when all its workers are at their ends, so ranks may have
// different numbers of batches. A training loop over an epoch warns of that; steps() are equally
// many on all ranks. To stop with the first rank is up to the training loop.
#pragma once

#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/never.h"
#include "muster/base/strings.h"
#include "muster/base/uneven_inputs.h"
#include "muster/data/batch.h"
#include "muster/data/collate.h"
#include "muster/data/device_copy.h"
#include "muster/data/loader_core.h"
#include "muster/data/own_loaders.h"
#include "muster/data/read_stream.h"
#include "muster/data/stream.h"
#include "muster/data/stream_position.h"
#include "muster/trace/span.h"

namespace muster {

// Throws: failed_precondition for an epoch without batches, which would loop forever.
[[noreturn]] void fail_empty_stream(const StreamPosition& position);

// `S` is a Stream, or a class like WebShards that is one. The loader keeps a copy, or shares the
// stream that it is given as a std::shared_ptr (`Given`). It can be moved as a DataLoader can.
template <class S>
class StreamLoader {
 public:
  using Example = typename S::Example;
  using Data = Collated<Example>;
  using Batch = muster::Batch<Data>;

  // Throws: invalid_argument for options out of range.
  template <class Given>
    requires std::same_as<StreamOf<Given>, S>
  StreamLoader(Given stream, const StreamLoaderOptions& options)
      : state_(std::make_unique<State>(shared_dataset(std::move(stream)), options)) {}
  // With the options of a DataLoader, which mean the same here.
  template <class Given, std::same_as<DataLoaderOptions> Options>
    requires std::same_as<StreamOf<Given>, S>
  StreamLoader(Given stream, const Options& options)
      : StreamLoader(std::move(stream), stream_options(options)) {}

 private:
  // Where its iterators find it, wherever the loader is moved.
  struct State {
    State(std::shared_ptr<const S> given, const StreamLoaderOptions& options)
        : stream(std::move(given)), shared(std::make_shared<streaming::Shared>(options)) {
      check_stream_options(options);
      position = begin_of(0);
    }
    StreamPosition begin_of(int64_t epoch) {
      StreamPosition begin = start_of_stream(epoch, shared->options);
      begin.step = position.step;
      batches_of_epoch = 0;
      return begin;
    }
    bool is_trained_on() const { return !shared->options.undivided && c10::GradMode::is_enabled(); }
    // Once, in training. Its number stays: ranks may be at different places.
    void compare_with_ranks() {
      if (!is_trained_on())
        return;
      if (number == 0)
        number = OwnLoaders::number_stream(shared->options.ranks);
      if (!std::exchange(is_compared, true))
        OwnLoaders::check(stream_identity(shared->options));
    }
    // A rank with fewer batches goes on to the next epoch while others still train on this one.
    void compare_ends(int64_t epoch) const {
      if (number > 0 && is_trained_on() && !UnevenInputs::allowed())
        OwnLoaders::check_end({.stream = number,
                               .places = places,
                               .epoch = epoch,
                               .batches = batches_of_last_epoch,
                               .ranks = shared->options.ranks});
    }
    // A loop over steps() begins.
    void compare_steps(int64_t until) {
      if (number > 0 && is_trained_on() && !UnevenInputs::allowed())
        OwnLoaders::check_end({.stream = number,
                               .places = ++step_loops,
                               .batches = until,
                               .ranks = shared->options.ranks,
                               .of_steps = true});
    }
    // A place where the loop did not come to by itself: its epoch may have been read before, in
    // part.
    void go_to(StreamPosition place) {
      position = std::move(place);
      batches_of_epoch = 0;
    }

    std::shared_ptr<const S> stream;
    std::shared_ptr<streaming::Shared> shared;  // with the workers, which may outlive the loader
    StreamPosition position;
    LoaderStats stats;
    int64_t batches_of_epoch = 0;
    int64_t batches_of_last_epoch = 0;
    bool is_compared = false;
    int64_t number = 0;      // among the job's streams; 0: not trained on
    int64_t places = 0;      // that the program has set, also where it was there already
    int64_t step_loops = 0;  // over steps(), in training
  };

 public:
  class Iterator : public BatchIterator<Batch> {
   public:
    Iterator& operator++();
    void operator++(int) { ++*this; }
    int64_t epoch() const { return now_.epoch; }  // of the batch
    // Whether the epoch has no further batch; then the loader is at the beginning of the next, and
    // this is at its end. For ZipLoaders. Blocking: until the next batch is read.
    bool leave_ended_epoch();

   private:
    friend class StreamLoader;
    using BatchIterator<Batch>::batch_;
    struct Coming {
      Batch batch;
      DeviceCopy::Started copy;
      int64_t number;         // of its turn
      int64_t examples;       // read for it
      StreamRemainders left;  // for its worker
    };

    Iterator(State& state, int64_t until_step, bool whole_steps = false)
        : loader_(&state), until_step_(until_step), has_whole_steps_(whole_steps) {
      start(loader_->position);
      if (until_step >= 0)
        loader_->compare_steps(until_step);
    }
    void start(const StreamPosition& from);
    void advance();
    bool stage(bool wait);
    void hand_out(Coming now);
    void end_epoch();
    StreamPosition leave_epoch();

    State* loader_;
    int64_t until_step_;    // over epochs, to this step; -1: this epoch
    bool has_whole_steps_;  // over the ends of epochs
    StreamPosition now_;    // after the batch handed out last
    int64_t turn_ = 0;      // the next one to take
    int64_t ended_ = 0;     // turns in a row without data
    int64_t in_step_ = 0;   // batches of the step handed out
    std::deque<Coming> coming_;
    std::unique_ptr<Prefetch> prefetch_;
  };

  // Iterates over the rest of the epoch from position(), also after an early exit. After its end
  // the next begin() reads the next epoch.
  Iterator begin() & { return {*state_, -1}; }
  std::default_sentinel_t end() const { return {}; }

  // Iterates from position() to step `until`, counted from the start of training, over as many
  // epochs as needed. The loader must live as long.
  auto steps(int64_t until) & { return Steps{*state_, until, false}; }
  // The same, but every step has `accumulate` batches, as DataLoader::whole_steps.
  auto whole_steps(int64_t until) & { return Steps{*state_, until, true}; }

  // Goes to the epoch's start; does nothing if restore() has led to the middle of this epoch.
  void set_epoch(int64_t epoch) {
    ++state_->places;
    if (epoch != state_->position.epoch)
      state_->go_to(state_->begin_of(epoch));
  }

  // The position after this rank's last whole step. Every rank saves its own, and resumes exactly
  // there with the same number of ranks and workers. Throws: as check_stream_position.
  const StreamPosition& position() const { return state_->position; }
  void restore(const StreamPosition& position) {
    check_stream_position(position, state_->shared->options);
    ++state_->places;
    state_->go_to(position);
  }
  // From the positions of all ranks that saved; the numbers of ranks and workers may be others now.
  // Throws: as divided_position.
  void restore(const std::vector<StreamPosition>& of_ranks) {
    ++state_->places;
    state_->go_to(divided_position(of_ranks, state_->shared->options));
  }

  const S& stream() const { return *state_->stream; }
  const StreamLoaderOptions& options() const { return state_->shared->options; }
  LoaderStats stats() const {
    LoaderStats stats = state_->stats;
    stats.bad_samples = state_->shared->bad.count();
    return stats;
  }
  // Batches of the last epoch that this rank has finished; ranks can compare it.
  int64_t batches_of_last_epoch() const { return state_->batches_of_last_epoch; }

  // Batches of a step.
  int64_t accumulate() const { return state_->shared->options.accumulate; }
  // Samples of a whole step, of all ranks together.
  int64_t global_batch() const {
    return options().batch_size * options().accumulate * options().ranks;
  }

 private:
  struct Steps {
    State& loader;
    int64_t until;
    bool whole;
    Iterator begin() { return {loader, until, whole}; }
    std::default_sentinel_t end() const { return {}; }
  };

  std::unique_ptr<State> state_;
};

// What is no stream: the text is the compiler's whole answer.
template <class S>
  requires(!IsStream<S>)
class StreamLoader<S> {
  static_assert(
      kNever<S>,
      "a StreamLoader takes a stream (IsStream): a class that derives from "
      "muster::Stream<Example>, by value or as a std::shared_ptr; a dataset, whose samples "
      "have indices, takes a DataLoader");

 public:
  StreamLoader(const auto& /*given*/, const StreamLoaderOptions& /*options*/) {}
};

template <class S>
void StreamLoader<S>::Iterator::start(const StreamPosition& from) {
  loader_->compare_with_ranks();
  now_ = from;
  turn_ = now_.batch;
  ended_ = 0;
  coming_.clear();
  auto workers = std::make_shared<std::vector<streaming::Worker<Example>>>();
  for (const auto& left : now_.left)
    workers->push_back({.left = left});
  const auto make = [source = loader_->stream,
                     workers,
                     shared = loader_->shared,
                     stream = loader_->shared->copy.current_stream()](
                        int64_t number, WorkerPlace& place) -> Prefetch::Thing {
    const bool is_worker = place.worker >= 0;
    const MakingBatch making(shared->copy, is_worker ? stream : std::nullopt);
    auto& worker = (*workers)[static_cast<size_t>(number) % workers->size()];
    return std::make_shared<streaming::Turn<Data>>(
        streaming::take_turn<Example>(*source, worker, *shared, place));
  };
  prefetch_ = std::make_unique<Prefetch>(
      make, turn_, INT64_MAX, loader_->shared->prefetch_options(/*in_turns=*/true));
  advance();
}

// Moves the next batch to coming_. Returns false if there is none or, without `wait`, none yet.
template <class S>
bool StreamLoader<S>::Iterator::stage(bool wait) {
  const auto& options = loader_->shared->options;
  while (ended_ < std::ssize(now_.left)) {
    Prefetch::Thing thing;
    if (wait) {
      thing = prefetch_->next();
      loader_->stats.seconds_stalled +=
          std::chrono::duration<double>(prefetch_->take_stall()).count();
    } else if (auto ready = prefetch_->next_if_ready()) {
      thing = std::move(*ready);
    } else {
      return false;
    }
    auto& turn = *static_cast<streaming::Turn<Data>*>(thing.get());
    const int64_t number = turn_++;
    if (!turn.data) {
      ++ended_;
      continue;
    }
    ended_ = 0;
    const double weight = static_cast<double>(turn.samples) /
                          static_cast<double>(options.batch_size) /
                          static_cast<double>(options.accumulate);
    coming_.push_back({Batch{std::move(*turn.data), weight, true, turn.samples},
                       nullptr,
                       number,
                       turn.examples,
                       std::move(turn.left)});
    Coming& set_out = coming_.back();
    set_out.copy = loader_->shared->copy.start(each_tensor_of(set_out.batch));
    return true;
  }
  return false;
}

template <class S>
void StreamLoader<S>::Iterator::advance() {
  batch_.reset();
  if (until_step_ >= 0 && loader_->position.step >= until_step_)
    return prefetch_.reset();
  if (coming_.empty() && !stage(true))
    return end_epoch();
  Coming now = std::move(coming_.front());
  coming_.pop_front();
  const bool fills_step = in_step_ + 1 == loader_->shared->options.accumulate;
  // Whether a batch is the epoch's last shows when no other follows.
  const bool more = has_whole_steps_ || !coming_.empty() || (!fills_step && stage(true));
  now.batch.last = fills_step || !more;
  // The next ones set out while this one is computed on.
  while (loader_->shared->copy.has_room_after(coming_.size()) && stage(false))
    continue;
  hand_out(std::move(now));
}

template <class S>
void StreamLoader<S>::Iterator::hand_out(Coming coming) {
  loader_->shared->copy.wait(coming.copy, each_tensor_of(coming.batch));
  batch_ = std::move(coming.batch);
  now_.left[static_cast<size_t>(coming.number) % now_.left.size()] = std::move(coming.left);
  now_.examples += coming.examples;
  now_.batch = coming.number + 1;
  ++in_step_;
  ++loader_->stats.batches;
  ++loader_->batches_of_epoch;
  loader_->stats.samples += batch_->samples;
  if (c10::GradMode::is_enabled())
    note_samples(batch_->samples);  // those that are trained on
  if (!batch_->last)
    return;
  in_step_ = 0;
  ++now_.step;
  loader_->position = now_;
}

template <class S>
bool StreamLoader<S>::Iterator::leave_ended_epoch() {
  if (!coming_.empty() || stage(true))
    return false;
  leave_epoch();
  batch_.reset();
  return true;
}

// Returns where the next one begins.
template <class S>
StreamPosition StreamLoader<S>::Iterator::leave_epoch() {
  prefetch_.reset();
  loader_->shared->bad.report();
  loader_->batches_of_last_epoch = loader_->batches_of_epoch;
  // In the middle of a step the training stays at its beginning.
  StreamPosition next = loader_->begin_of(now_.epoch + 1);
  if (in_step_ == 0)
    loader_->position = next;
  return next;
}

template <class S>
void StreamLoader<S>::Iterator::end_epoch() {
  const bool empty = now_.batch == 0 && loader_->batches_of_epoch == 0;
  const StreamPosition next = leave_epoch();
  if (until_step_ < 0)
    return loader_->compare_ends(now_.epoch);
  if (empty)
    fail_empty_stream(now_);
  start(next);
}

template <class S>
typename StreamLoader<S>::Iterator& StreamLoader<S>::Iterator::operator++() {
  if (loader_->shared->options.check_weight)
    check_weight_read(batch_->weight, now_.batch - 1);
  advance();
  return *this;
}

template <class Given>
StreamLoader(Given, const StreamLoaderOptions&) -> StreamLoader<StreamOf<Given>>;
template <class Given, std::same_as<DataLoaderOptions> Options>
StreamLoader(Given, const Options&) -> StreamLoader<StreamOf<Given>>;

}  // namespace muster
