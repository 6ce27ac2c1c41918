// How a loader (loader.h) makes batches, and where it stands.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace muster {

struct DataLoaderOptions {
  int64_t batch_size = 1;  // samples of this rank; with a sampler's shares it must be this rank's share
  int64_t accumulate = 1;  // batches of a step; an epoch's last step may have fewer
  bool drop_last = false;  // leave out a last batch that is not full
  c10::Device device = c10::kCPU;  // where batches are put
  bool pin_memory = true;  // copy to a GPU through page-locked memory, while the batch before is computed on
  int workers = 0;         // threads that read and join examples; 0: the training thread does
  int64_t ahead = 0;       // batches that are made before they are asked for; 0: two for each worker
  // How long a batch of the workers may take to come; without it there is a warning after a minute. A worker
  // that is late is left behind, and may still run when the process ends.
  std::optional<std::chrono::milliseconds> timeout = {};
  // Leave out samples whose get() throws, but for want of memory: their batch is smaller, with the weight of
  // a full one. A warning counts them when an epoch, or a run of steps, ends. Without it such a sample ends
  // the epoch with an error that names it.
  bool skip_bad = false;
  // In a loop that computes gradients, a batch whose weight is not 1 and was not read is an error.
  bool check_weight = true;
};

// Where training is in its data: what resuming needs. After whole steps only.
struct DataPosition {
  int64_t epoch = 0;
  int64_t consumed = 0;      // samples of the epoch that all ranks together have used
  int64_t dataset_size = 0;  // of which data set; 0: unknown
  int64_t step = 0;          // steps in all
  int64_t order = 0;         // a number made of the seed and the order; 0: unknown
  int64_t samples = 0;       // that all ranks together have used since the beginning
  bool operator==(const DataPosition&) const = default;
};

struct LoaderStats {
  int64_t batches = 0;  // handed out, since the loader was made
  int64_t samples = 0;
  double seconds_stalled = 0;  // waited for workers
  int64_t bad_samples = 0;     // left out by skip_bad
};

}  // namespace muster
