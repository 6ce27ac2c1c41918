// Reads and joins the samples of one batch, on the thread of a loop or of a worker. The part of a
// loader (loader.h) that knows the type of the examples, and nothing of where training is.
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

#include "muster/data/batch_places.h"
#include "muster/data/collate.h"
#include "muster/data/dataset.h"
#include "muster/data/device_copy.h"
#include "muster/data/loader_core.h"

namespace muster {

namespace loading {

template <class D>
auto joined_example(const D& dataset) {
  if constexpr (GivesBatches<D>) {
    return dataset.get_batch(at::Tensor(), true);
  } else {
    return collate(std::vector<typename D::Example>());
  }
}

// For a batch of which no sample can be read: those after its last that can be, as many as it has.
// The ranks stay together, as each has a batch.
template <class D>
auto examples_instead(const D& dataset,
                      const EpochBatches& epoch,
                      const std::vector<int64_t>& samples,
                      WorkerPlace& place,
                      std::vector<int64_t>& indices) {
  constexpr int64_t kMostTried = 10'000;
  const int64_t size = dataset.size(), most = std::min(size, kMostTried);
  std::vector<typename D::Example> examples;
  for (int64_t i = 1; i <= most && examples.size() < samples.size(); ++i) {
    const int64_t sample = (samples.back() + i) % size;
    place.sample = sample;
    BatchPlaces::begin_example(std::ssize(examples));
    try {
      Generator rng(epoch.seed, epoch.epoch, sample);
      examples.push_back(dataset.get(sample, rng));
      indices.push_back(sample);
    } catch (const std::bad_alloc&) {
      fail_sample(sample, place);
    } catch (...) {  // it is counted where it is of a batch
    }
  }
  if (examples.empty())
    fail_empty_batch(samples, most, place);
  return examples;
}

// The examples of the epoch's batch `number` that can be read, and their `indices`.
template <class D>
auto read_examples(const D& dataset,
                   const EpochBatches& epoch,
                   int64_t number,
                   const std::vector<int64_t>& samples,
                   LoaderShared& shared,
                   WorkerPlace& place,
                   std::vector<int64_t>& indices) {
  const std::vector<int64_t> chances = epoch.positions ? epoch.positions(number) : samples;
  std::vector<typename D::Example> examples;
  examples.reserve(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    place.sample = samples[i];
    BatchPlaces::begin_example(std::ssize(examples));
    try {
      Generator rng(epoch.seed, epoch.epoch, chances[i]);
      examples.push_back(dataset.get(samples[i], rng));
      indices.push_back(samples[i]);
    } catch (const std::bad_alloc&) {
      fail_sample(samples[i], place);
    } catch (...) {
      if (!shared.options.skip_bad)
        fail_sample(samples[i], place);
      shared.bad.add(samples[i], text_of_current_exception());
    }
  }
  return examples;
}

template <class Data>
struct LoadedBatch {
  Data data;
  std::vector<int64_t> indices;
  bool stands_in = false;  // for samples none of which could be read
};

// The joined samples of the epoch's batch `number`.
template <class D>
auto joined_batch(const D& dataset,
                  const EpochBatches& epoch,
                  int64_t number,
                  const std::vector<int64_t>& samples,
                  LoaderShared& shared,
                  WorkerPlace& place) {
  using Data = decltype(joined_example(dataset));
  if constexpr (GivesBatches<D>) {
    const bool pinned = shared.copy.pins();
    return LoadedBatch<Data>{dataset.get_batch(at::tensor(samples, at::kLong), pinned), samples};
  } else {
    std::vector<int64_t> indices;
    auto examples = read_examples(dataset, epoch, number, samples, shared, place, indices);
    const bool stands_in = examples.empty();
    if (stands_in)
      examples = examples_instead(dataset, epoch, samples, place, indices);
    BatchPlaces::end_examples();
    try {
      return LoadedBatch<Data>{collate(std::move(examples)), std::move(indices), stands_in};
    } catch (...) {
      fail_batch(samples, place);
    }
  }
}

// The epoch's batch `number`, from where it can be copied to its device. `stream`: the loop's.
template <class D>
auto load(const D& dataset,
          const EpochBatches& epoch,
          int64_t number,
          const std::optional<c10::Stream>& stream,
          LoaderShared& shared,
          WorkerPlace& place) {
  const bool is_worker = place.worker >= 0;
  const MakingBatch making(shared.copy, is_worker ? stream : std::nullopt);
  const std::vector<int64_t> samples = epoch.samples(number);
  const BatchPlaces places(shared.memory, std::ssize(samples));
  auto loaded = joined_batch(dataset, epoch, number, samples, shared, place);
  try {
    shared.copy.pin([&](const auto& change) { for_each_tensor(loaded.data, change); });
  } catch (...) {
    fail_batch(samples, place);
  }
  return loaded;
}

}  // namespace loading

}  // namespace muster
