// The options of a loader (loader.h), its position in the data, and its statistics.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "muster/base/clock.h"

namespace muster {

struct DataLoaderOptions {
  int64_t batch_size = 1;  // samples on this rank; if the sampler has shares, this rank's share
  int64_t accumulate = 1;  // batches per step; an epoch's last step may have fewer
  bool drop_last = false;  // drop a last batch that is not full
  c10::Device device = c10::kCPU;  // where batches are put
  // Batches for a GPU are made in page-locked memory, so that up to two are copied while the GPU
  // computes on one before them. A GPU then holds three batches.
  bool pin_memory = true;
  // Threads that read, collate and pin examples. Unset: 1 on a GPU, so that the thread that
  // launches kernels does nothing of it, and 0 on the CPU. 0: the training thread does it all.
  // Batches, their order and their random numbers are the same for any number. With 1 a loop's
  // get() is called by one thread, but that is another one than the thread of the loop.
  std::optional<int> workers{};
  int64_t ahead = 0;  // batches prepared ahead of those on their way to a GPU; 0: two per worker
  // How long a batch may take to come from the workers. Unset: only a warning after a minute. A
  // late worker is abandoned, and may still be running when the process ends.
  std::optional<milliseconds> timeout{};
  // Skip samples whose get() throws (except for lack of memory). Their batch is smaller but keeps
  // the weight of a full one. A batch of which none can be read is replaced by the next samples
  // that can, so that ranks stay together; without gradients, as in evaluation, it is left out. A
  // warning at the end of an epoch, or of steps(), counts the skipped. If false, such a sample ends
  // the epoch with an error that names it.
  bool skip_bad = false;
  // In a loop that computes gradients, it is an error not to read a batch's weight when it is
  // not 1.
  bool check_weight = true;
  // Every rank has data of its own, or takes all samples on purpose. If false, a job of several
  // ranks warns of a training loader whose sampler does not divide them.
  bool undivided = false;
};

// The training position in the data, as resuming needs it. Valid only after whole steps.
struct DataPosition {
  int64_t epoch = 0;
  int64_t consumed = 0;      // samples of the epoch used by all ranks together
  int64_t dataset_size = 0;  // which dataset; 0: unknown
  int64_t step = 0;          // steps in total
  int64_t order = 0;         // a hash of the seed and the order; 0: unknown
  int64_t samples = 0;       // used by all ranks together since the start of training
  bool operator==(const DataPosition&) const = default;
};

struct LoaderStats {
  int64_t batches = 0;  // handed out since the loader was made
  int64_t samples = 0;
  double seconds_stalled = 0;  // spent waiting for workers
  int64_t bad_samples = 0;     // skipped by skip_bad
};

}  // namespace muster
