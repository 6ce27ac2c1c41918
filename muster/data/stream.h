// Examples without an index, read one after another from shards, a socket or a program. A
// StreamLoader (stream_loader.h) reads them; each worker of each rank reads its own part.
//
//   struct Lines : muster::Stream<at::Tensor> {
//     std::unique_ptr<muster::StreamReader<at::Tensor>> open(
//         const muster::StreamPart& part) const override;
//   };
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>

#include "muster/data/dataset.h"

namespace muster {

// Which part of the examples, in which epoch. Together the parts contain every example once.
struct StreamPart {
  int64_t part = 0;
  int64_t parts = 1;
  int64_t seed = 0;
  int64_t epoch = 0;
};

// Used by one thread at a time.
template <class E>
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  // Returns the next example; nothing at the end and after it. The same part gives the same
  // examples in the same order. Throws if an example cannot be read; the next call continues after
  // it.
  virtual std::optional<E> next() = 0;
  // Equals `count` calls of next(), including those that throw. Called when training resumes, and
  // between examples if several workers divide the rest of a part, each with a reader of its own.
  // Override it if examples can be skipped without decoding.
  virtual void skip(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      try {
        if (!next())
          return;
      } catch (...) {  // counted when it was first read
      }
    }
  }
};

template <class ExampleType>
class Stream {
 public:
  using Example = ExampleType;
  virtual ~Stream() = default;
  // Called by several threads at once; on a GPU by a worker's thread, as Dataset::get (dataset.h).
  virtual std::unique_ptr<StreamReader<Example>> open(const StreamPart& part) const = 0;
};

// A Stream, or a class like WebShards that is one.
template <class S>
concept IsStream = std::derived_from<S, Stream<typename S::Example>>;

// The stream that a program gives: by value, or as a std::shared_ptr that others have too.
template <class Given>
using StreamOf = DatasetOf<Given>;

template <class Given>
concept GivesStream = IsStream<StreamOf<Given>>;

}  // namespace muster
