// How a StreamLoader (stream_loader.h) reads, and where it stands: what resuming needs.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

struct StreamLoaderOptions {
  int64_t batch_size = 1;
  int64_t accumulate = 1;  // batches of a step; an epoch's last step may have fewer
  bool drop_last = false;  // leave out what does not fill a batch, at the end of each worker's part
  c10::Device device = c10::kCPU;
  bool pin_memory = true;  // as DataLoaderOptions
  int workers = 0;         // threads, each with a part of its own; 0: the training thread reads the one part
  int64_t ahead = 0;       // batches made before they are asked for; 0: two for each worker
  std::optional<std::chrono::milliseconds> timeout = {};
  bool skip_bad = false;  // leave out examples that cannot be read, and count them
  bool check_weight = true;
  int64_t seed = 0;  // the same on every rank
  int64_t rank = 0;
  int64_t ranks = 1;
};

// Of one rank, after whole steps only. Every rank saves its own.
struct StreamPosition {
  int64_t epoch = 0;
  int64_t step = 0;   // in all
  int64_t batch = 0;  // of the epoch: which worker's turn it is
  int64_t seed = 0;
  int64_t rank = 0;
  int64_t ranks = 1;
  int64_t batch_size = 1;
  std::vector<int64_t> read = {0};  // by each worker: examples, and those that could not be read
  bool operator==(const StreamPosition&) const = default;

  // As numbers, for a checkpoint. Throws: invalid_argument for numbers that are not such a position's.
  std::vector<int64_t> values() const;
  static StreamPosition from_values(const std::vector<int64_t>& values);
};

// Throws: invalid_argument for batch_size, accumulate, workers, ahead, rank or ranks out of range.
void check_stream_options(const StreamLoaderOptions& options);

// Throws: failed_precondition where a loader with such options cannot go on from the position: it was written
// with another seed, batch size, number of ranks or of workers, or by another rank.
void check_stream_position(const StreamPosition& position, const StreamLoaderOptions& options);

}  // namespace muster
