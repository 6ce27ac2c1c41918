// Reads and joins the samples of one batch, on the thread of a loop or of a worker. This part of a
// loader (loader.h) knows the type of the examples, and nothing of where training is.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/data/batch_places.h"
#include "muster/data/collate.h"
#include "muster/data/dataset.h"
#include "muster/data/device_copy.h"
#include "muster/data/loader_core.h"

namespace muster::loading {

// A batch of no samples: of the type that all batches of the dataset have.
template <class D>
auto joined_example(const D& dataset) {
  if constexpr (GivesBatches<D>) {
    return dataset.get_batch(Tensor(), true);
  } else {
    return collate(std::vector<typename D::Example>());
  }
}

// Reads samples of an epoch one after the other.
template <class D>
struct ExampleReader {
  const D& dataset;
  const EpochBatches& epoch;
  WorkerPlace& place;
  std::vector<typename D::Example> examples{};
  Int64s indices{};  // of the examples

  // The random numbers are those of `position`. In the handler of a sample that cannot be read it
  // calls `leave_out`.
  template <class Function>
  void read(int64_t sample, int64_t position, const Function& leave_out) {
    place.sample = sample;
    BatchPlaces::begin_example(std::ssize(examples));
    try {
      Generator rng(epoch.seed, epoch.epoch, position);
      examples.push_back(dataset.get(sample, rng));
      indices.push_back(sample);
    } catch (const std::bad_alloc&) {
      fail_sample(sample, place);
    } catch (...) {
      leave_out();
    }
  }

  // Those of the epoch's batch `number` that can be read.
  void read_batch(int64_t number, const Int64s& samples, LoaderShared& shared) {
    const Int64s positions = epoch.positions ? epoch.positions(number) : samples;
    examples.reserve(samples.size());
    for (const size_t i : indices_of(samples))
      read(samples[i], positions[i], [&] {
        if (!shared.options.skip_bad)
          fail_sample(samples[i], place);
        shared.bad.add(samples[i], text_of_current_exception());
      });
  }

  // For a batch of which no sample can be read: those after its last that can be, as many as it
  // has. The ranks stay together, as each has a batch.
  void read_instead(const Int64s& samples) {
    constexpr int64_t kMostTried = 10'000;  // samples
    const int64_t size = dataset.size(), most = std::min(size, kMostTried);
    const auto leave_out = [] {
    };  // a bad sample is counted in its own batch
    for (int64_t i = 1; i <= most && examples.size() < samples.size(); ++i) {
      const int64_t sample = (samples.back() + i) % size;
      read(sample, sample, leave_out);
    }
    if (examples.empty())
      fail_empty_batch(samples, most, place);
  }
};

template <class Data>
struct LoadedBatch {
  Data data;
  Int64s indices;
  bool stands_in = false;  // for samples of which none could be read
};

// The joined samples of the epoch's batch `number`.
template <class D>
auto joined_batch(const D& dataset,
                  const EpochBatches& epoch,
                  int64_t number,
                  const Int64s& samples,
                  LoaderShared& shared,
                  WorkerPlace& place) {
  using Data = decltype(joined_example(dataset));
  if constexpr (GivesBatches<D>) {
    const bool pinned = shared.copy.pins();
    return LoadedBatch<Data>{dataset.get_batch(at::tensor(samples, at::kLong), pinned), samples};
  } else {
    ExampleReader<D> reader{dataset, epoch, place};
    reader.read_batch(number, samples, shared);
    const bool stands_in = reader.examples.empty();
    if (stands_in)
      reader.read_instead(samples);
    BatchPlaces::end_examples();
    try {
      return LoadedBatch<Data>{
          collate(std::move(reader.examples)), std::move(reader.indices), stands_in};
    } catch (...) {
      fail_batch(samples, place);
    }
  }
}

// The epoch's batch `number`, in memory that can be copied to its device. `stream` is the loop's.
template <class D>
auto load(const D& dataset,
          const EpochBatches& epoch,
          int64_t number,
          const std::optional<c10::Stream>& stream,
          LoaderShared& shared,
          WorkerPlace& place) {
  const bool is_worker = place.worker >= 0;
  const MakingBatch making(shared.copy, is_worker ? stream : std::nullopt);
  const Int64s samples = epoch.samples(number);
  const BatchPlaces places(shared.memory, std::ssize(samples));
  auto loaded = joined_batch(dataset, epoch, number, samples, shared, place);
  try {
    shared.copy.pin([&](const auto& change) { for_each_tensor(loaded.data, change); });
  } catch (...) {
    fail_batch(samples, place);
  }
  return loaded;
}

}  // namespace muster::loading
