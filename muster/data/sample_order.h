// In which order an epoch goes through a data set: a pure function of (seed, epoch), the same on every rank.
// A sampler (distributed_sampler.h) divides what comes out over the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

// Position in the epoch, from 0, to the sample there.
using EpochOrder = std::function<int64_t(int64_t position)>;

struct SampleOrder {
  std::string name;          // with all that decides it: ranks compare it, and messages show it
  int64_t dataset_size = 0;  // samples are numbers below it
  int64_t samples = 0;       // of one epoch
  std::function<EpochOrder(int64_t seed, int64_t epoch)> epoch;
  bool changes = true;   // from epoch to epoch
  bool repeats = false;  // samples may come several times in an epoch
};

// The order of an epoch, which is computed when the first position is asked for, by whichever thread asks.
EpochOrder order_when_needed(const SampleOrder& order, int64_t seed, int64_t epoch);

// 0, 1, 2, … in every epoch.
SampleOrder in_order(int64_t dataset_size);

// torch.randperm of a generator seeded with seed + epoch, as PyTorch's DistributedSampler has it. 8 bytes a
// sample. Source: torch.utils.data.DistributedSampler.
SampleOrder shuffled(int64_t dataset_size);

// Another permutation for each (seed, epoch), computed position by position: no memory, and nothing to wait
// for, whatever the size. Source: a Feistel network over the next even power of two, walked until it falls
// below the size.
SampleOrder pseudo_shuffled(int64_t dataset_size);

// `samples` drawn in proportion to `weights`, one for each sample of the data set; every rank gets its part
// of one draw. Source: torch.utils.data.WeightedRandomSampler with a generator seeded with seed + epoch, draw
// for draw. Throws: invalid_argument for weights that are negative, not finite, or all zero; for more samples
// without replacement than there are weights above zero.
SampleOrder weighted(const std::vector<double>& weights, int64_t samples, bool replacement = true);

// As many of each class, on the average: weighted() with 1 / how often the label occurs. `samples` 0: as many
// as there are labels. Shapes: labels [N] int64.
SampleOrder class_balanced(const at::Tensor& labels, int64_t samples = 0);

// `order`, with samples of like length near each other, so that batches need little padding: within every
// `window` positions samples are sorted by length, cut into groups of `group`, and the groups shuffled. A
// group is a batch of all ranks together. Throws: invalid_argument when `lengths` are not one for each
// sample, or window is no multiple of group.
SampleOrder bucketed(const SampleOrder& order, const std::vector<int64_t>& lengths, int64_t group,
                     int64_t window);

}  // namespace muster
