// Reads and joins the examples of a worker's next batch. The part of a StreamLoader
// (stream_loader.h) that knows the type of the examples, and nothing of where training is.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/data/batch_places.h"
#include "muster/data/collate.h"
#include "muster/data/device_copy.h"
#include "muster/data/loader_core.h"
#include "muster/data/stream.h"
#include "muster/data/stream_position.h"

namespace muster {

namespace streaming {

using Shared = SharedWithWorkers<StreamLoaderOptions>;

// What a worker keeps between its batches.
template <class E>
struct Worker {
  StreamRemainders left;
  std::unique_ptr<StreamReader<E>> reader{};  // of the first of them
};

// What a worker returns in its turn; no data at the end of all that it reads.
template <class Data>
struct Turn {
  std::optional<Data> data;
  int64_t samples = 0;
  int64_t examples = 0;  // those too that cannot be read
  StreamRemainders left{};
};

// Call it in a handler. Rethrows the exception, unless bad examples are skipped and some recent
// ones were good.
void note_bad_example(Shared& shared, const StreamRemainder& left, int64_t* in_a_row);

// "part 1 of 4, at example 20".
std::string place_in_stream(const StreamRemainder& left);

template <class E>
StreamReader<E>& reader_of(const Stream<E>& stream, Worker<E>& worker, int64_t seed) {
  if (!worker.reader) {
    const auto& now = worker.left.front();
    worker.reader =
        stream.open({.part = now.part, .parts = now.parts, .seed = seed, .epoch = now.epoch});
    if (now.next > 0)
      worker.reader->skip(now.next);
  }
  return *worker.reader;
}

// A worker's next batch.
template <class E>
std::vector<E> read_examples(const Stream<E>& stream,
                             Worker<E>& worker,
                             Shared& shared,
                             WorkerPlace& place,
                             int64_t* count) {
  std::vector<E> examples;
  int64_t bad_in_a_row = 0;
  while (std::ssize(examples) < shared.options.batch_size && !worker.left.empty()) {
    auto& now = worker.left.front();
    place.sample = now.next;
    BatchPlaces::begin_example(std::ssize(examples));
    auto& reader = reader_of(stream, worker, shared.options.seed);
    try {
      auto example = reader.next();
      if (!example) {
        worker.left.erase(worker.left.begin());
        worker.reader.reset();
        continue;
      }
      examples.push_back(std::move(*example));
      bad_in_a_row = 0;
    } catch (const std::bad_alloc&) {
      throw;  // the example is not bad
    } catch (...) {
      note_bad_example(shared, now, &bad_in_a_row);
    }
    if (now.stride > 1)
      reader.skip(now.stride - 1);
    now.next += now.stride;
    ++*count;
  }
  return examples;
}

template <class E>
auto take_turn(const Stream<E>& stream, Worker<E>& worker, Shared& shared, WorkerPlace& place) {
  Turn<Collated<E>> turn;
  const StreamRemainder first = worker.left.empty() ? StreamRemainder() : worker.left.front();
  const BatchPlaces places(shared.memory, shared.options.batch_size);
  try {
    auto examples = read_examples(stream, worker, shared, place, &turn.examples);
    BatchPlaces::end_examples();
    turn.samples = std::ssize(examples);
    turn.left = worker.left;
    if (turn.samples == shared.options.batch_size ||
        (turn.samples > 0 && !shared.options.drop_last))
      turn.data = collate(std::move(examples));
    if (turn.data)
      shared.copy.pin([&](const auto& change) { for_each_tensor(*turn.data, change); });
  } catch (...) {
    fail_loading(place_in_stream(worker.left.empty() ? first : worker.left.front()));
  }
  return turn;
}

}  // namespace streaming

}  // namespace muster
