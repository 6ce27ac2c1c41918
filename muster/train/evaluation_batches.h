// The batches of one evaluation: whether a loader gives each sample once, and how ranks with
// different numbers of batches go through them. For evaluate() and predict().
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "muster/base/lists.h"
#include "muster/comm/process_group.h"
#include "muster/data/stream_position.h"
#include "muster/train/evaluation_mode.h"

namespace muster::evaluation {

// A loader of samples that have numbers.
template <class Loader>
concept HasDataset = requires(Loader& loader) {
  { loader.dataset().size() } -> std::convertible_to<int64_t>;
  { loader.stats().bad_samples } -> std::convertible_to<int64_t>;
};

template <class Loader>
concept HasStream = requires(Loader& loader) {
  { loader.options() } -> std::convertible_to<StreamLoaderOptions>;
  { loader.position() } -> std::convertible_to<StreamPosition>;
};

// The group itself, or that of a muster::Context.
inline ProcessGroup& group_of(ProcessGroup& group) {
  return group;
}
template <class Context>
  requires requires(Context& ctx) { ctx.process_group(); }
ProcessGroup& group_of(Context& ctx) {
  return ctx.process_group();
}

// Counts the samples of all ranks, and adds up a hash of which they are.
class SampleCount {
 public:
  void add(int64_t samples, const Int64s& indices = {});
  // `bad`: those of this rank that the loader has skipped. Collective: yes. Throws:
  // invalid_argument, on every rank, if more or fewer were counted than the dataset has, or some of
  // them twice. (With bad ones, or a loader of one's own, whose numbers nobody knows, only the
  // count is compared.)
  void check(ProcessGroup& group, int64_t dataset_size, int64_t bad) const;

 private:
  int64_t samples_ = 0;
  int64_t numbered_ = 0;  // of them
  int64_t hash_ = 0;
};

// Says that a loader repeats samples or leaves some out. `got`: how many there were.
[[noreturn]] void refuse_samples(const char* owner,
                                 int64_t dataset_size,
                                 const std::string& got,
                                 bool repeats);

// A stream's parts contain each example once, if the ranks have all of them from the beginning.
// Collective: yes. Throws: invalid_argument, on every rank, where they have not.
void check_stream(ProcessGroup& group,
                  const StreamLoaderOptions& options,
                  const StreamPosition& position);

// Whether any rank says so. Collective: yes.
bool any_rank(ProcessGroup& group, bool here);

// Collective: yes. Throws: failed_precondition, on every rank, if a rank has no batch.
void check_has_batch(ProcessGroup& group, bool here);

// A batch for a rank that has none of its own, where the loader can make one.
template <class Batch, class Loader>
std::optional<Batch> batch_instead(Loader& loader) {
  if constexpr (requires { loader.batch_of({}); })
    return loader.batch_of({0});
  return std::nullopt;
}

// Goes through a loader, which may be the training's too: its place in the training stays.
template <class Loader, class Pass>
void without_moving(Loader& loader, const Pass& pass) {
  if constexpr (requires { loader.restore(loader.position()); }) {
    const auto place = loader.position();
    pass();
    loader.restore(place);
  } else {
    pass();
  }
}

// Calls `body(batch, counts)` for each batch of this rank. A model that runs together on all ranks
// runs as often on each: ranks that have no more batches repeat their last, which does not count.
template <class Model, class Loader, class Body>
void for_each_batch(ProcessGroup& group, Model& /*model*/, Loader& loader, const Body& body) {
  if constexpr (!kRunsTogether<Model>) {
    for (const auto& batch : loader)
      body(batch, true);
  } else {
    auto next = loader.begin();
    using Batch = std::remove_cvref_t<decltype(*next)>;
    std::optional<Batch> last;
    if (next == loader.end())
      last = batch_instead<Batch>(loader);
    check_has_batch(group, last || next != loader.end());
    while (any_rank(group, next != loader.end())) {
      const bool counts = next != loader.end();
      if (counts)
        last = *next;
      body(*last, counts);
      if (counts)
        ++next;
    }
  }
}

template <class Batch>
void add_to(SampleCount& samples, const Batch& batch) {
  if constexpr (requires { batch.sample_indices; })
    samples.add(batch.size(), batch.sample_indices);
  else
    samples.add(batch.size());
}

// The same in evaluation mode, with a loader that must give each sample once. Throws: as
// SampleCount and check_stream.
template <class Model, class Loader, class Body>
void for_each_sample_once(ProcessGroup& group, Model& model, Loader& loader, const Body& body) {
  if constexpr (HasStream<Loader>)
    check_stream(group, loader.options(), loader.position());
  const EvaluationMode mode(with_modes(model), group);
  SampleCount samples;
  const auto count_and_call = [&](const auto& batch, bool counts) {
    body(batch, counts);
    if (counts)
      add_to(samples, batch);
  };
  if constexpr (HasDataset<Loader>) {
    const int64_t bad_before = loader.stats().bad_samples;
    without_moving(loader, [&] { for_each_batch(group, model, loader, count_and_call); });
    samples.check(group, loader.dataset().size(), loader.stats().bad_samples - bad_before);
  } else {
    without_moving(loader, [&] { for_each_batch(group, model, loader, count_and_call); });
  }
}

}  // namespace muster::evaluation
