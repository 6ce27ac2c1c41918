// Examples without an index: read one after the other, from shards, a socket, or a program. Read by a
// StreamLoader (stream_loader.h), each of whose workers, on each rank, reads a part of its own.
//
//   struct Lines : muster::Stream<at::Tensor> {
//     std::unique_ptr<muster::StreamReader<at::Tensor>> open(const muster::StreamPart& part) const override;
//   };
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace muster {

// Which part of the examples, in which epoch. Together the parts give every example once.
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
  // The next example; nothing at the end, and from then on. The same ones in the same order for the same
  // part. Where an example cannot be read it throws, and the next call goes on behind it.
  virtual std::optional<E> next() = 0;
  // The same as so many calls of next(), those that throw among them. Resuming calls it: worth overriding
  // where examples can be passed over without decoding them.
  virtual void skip(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      try {
        if (!next()) return;
      } catch (...) {  // was counted when it was first read
      }
    }
  }
};

template <class ExampleType>
class Stream {
 public:
  using Example = ExampleType;
  virtual ~Stream() = default;
  // Called by several threads at once.
  virtual std::unique_ptr<StreamReader<Example>> open(const StreamPart& part) const = 0;
};

}  // namespace muster
