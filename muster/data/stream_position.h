// The options of a StreamLoader (stream_loader.h), and its position, as resuming needs it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/data/loader_options.h"
#include "muster/data/sampler_identity.h"

namespace muster {

// Those of DataLoaderOptions have its names, and what is said there holds here.
struct StreamLoaderOptions {
  int64_t batch_size = 1;
  int64_t accumulate = 1;  // batches per step; an epoch's last step may have fewer
  bool drop_last =
      false;  // drop examples that do not fill a batch at the end of each worker's part
  c10::Device device = c10::kCPU;
  bool pin_memory = true;  // as DataLoaderOptions
  // Threads, each with its own part. Unset: 1 on a GPU, 0 on the CPU. 0: the training thread reads
  // the only part, which is the same as that of 1.
  std::optional<int> workers{};
  int64_t ahead = 0;  // batches prepared ahead; 0: two per worker
  std::optional<milliseconds> timeout{};
  bool skip_bad = false;  // skip examples that cannot be read, and count them
  bool check_weight = true;
  int64_t seed = 0;  // the same on every rank
  int64_t rank = 0;  // ctx.loader sets these two
  int64_t ranks = 1;
  bool undivided = false;  // as DataLoaderOptions
};

// What a worker still has to read of a part: the example `next`, and every `stride`-th after it.
struct StreamRemainder {
  int64_t epoch = 0;
  int64_t part = 0;
  int64_t parts = 1;
  int64_t next = 0;    // counts unreadable ones too
  int64_t stride = 1;  // more if the part was divided in the middle of an epoch
  bool operator==(const StreamRemainder&) const = default;
};

using StreamRemainders = std::vector<StreamRemainder>;

// The position of one rank; valid only after whole steps. Every rank saves its own.
struct StreamPosition {
  int64_t epoch = 0;
  int64_t step = 0;   // in total
  int64_t batch = 0;  // turns of this rank's workers in the epoch; decides which worker is next
  int64_t seed = 0;
  int64_t rank = 0;
  int64_t ranks = 1;
  int64_t examples = 0;                         // of the epoch, including unreadable ones
  std::vector<StreamRemainders> left = {{{}}};  // by worker, in the order of reading
  bool operator==(const StreamPosition&) const = default;

  // As numbers, for a checkpoint. Throws: invalid_argument for numbers that are not a valid
  // position.
  Int64s values() const;
  static StreamPosition from_values(const Int64s& values);
};

using StreamPositions = std::vector<StreamPosition>;

// The options of a DataLoader as those of a stream, with the seed 0 and on one rank.
StreamLoaderOptions stream_options(const DataLoaderOptions& options);

// Throws: invalid_argument for batch_size, accumulate, workers, ahead, rank or ranks out of range.
void check_stream_options(const StreamLoaderOptions& options);

// What the ranks of a job compare about their loaders.
SamplerIdentity stream_identity(const StreamLoaderOptions& options);

// An epoch's beginning for these options' rank.
StreamPosition start_of_stream(int64_t epoch, const StreamLoaderOptions& options);

// Throws: failed_precondition if a loader with these options cannot resume there: the position was
// written with another seed, number of ranks or of workers, or by another rank.
void check_stream_position(const StreamPosition& position, const StreamLoaderOptions& options);

// Where a rank resumes, from the positions of all ranks that saved. With as many ranks and workers
// it is the rank's own. Otherwise all that was left of the epoch is divided evenly over the new
// workers: each example is read once. The next epoch has the new parts. Throws: failed_precondition
// for another seed; invalid_argument for positions that are not those of ranks 0, 1, … of one
// group.
StreamPosition divided_position(const StreamPositions& saved, const StreamLoaderOptions& options);

}  // namespace muster
