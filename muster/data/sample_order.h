// The order in which an epoch visits a dataset: a pure function of (seed, epoch), the same on every
// rank. A sampler (distributed_sampler.h) divides it among the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

// Maps a position in the epoch, from 0, to a sample.
using EpochOrder = std::function<int64_t(int64_t position)>;

struct SampleOrder {
  std::string name;  // includes every setting that decides it: ranks compare it, messages show it
  int64_t dataset_size = 0;  // sample indices are below it
  int64_t samples = 0;       // per epoch
  std::function<EpochOrder(int64_t seed, int64_t epoch)> epoch;
  bool changes = true;   // from epoch to epoch
  bool repeats = false;  // samples may occur several times in an epoch
};

// The order of an epoch, computed at the first request for a position, by the thread that requests
// it.
EpochOrder order_when_needed(const SampleOrder& order, int64_t seed, int64_t epoch);

// 0, 1, 2, … in every epoch.
SampleOrder in_order(int64_t dataset_size);

// torch.randperm with a generator seeded with seed + epoch, as in PyTorch's DistributedSampler.
// Takes 8 bytes per sample. Source: torch.utils.data.DistributedSampler.
SampleOrder shuffled(int64_t dataset_size);

// Another permutation for each (seed, epoch), computed position by position: it takes no memory and
// no time to prepare, at any size. Source: a Feistel network over the next even power of two,
// iterated until the result is below the size.
SampleOrder pseudo_shuffled(int64_t dataset_size);

// Draws `samples` samples in proportion to `weights`, one weight per sample of the dataset; every
// rank gets its part of one draw. Throws: invalid_argument for weights that are negative, not
// finite or all zero, and for more samples without replacement than there are positive weights.
// Source: torch.utils.data.WeightedRandomSampler with a generator seeded with seed + epoch, draw
// for draw. It refuses more than 2^24 weights; with more the draws are of the same distribution.
SampleOrder weighted(const std::vector<double>& weights, int64_t samples, bool replacement = true);

// Draws every class equally often on average: weighted() with 1 / (the label's frequency).
// `samples` 0: the number of labels. Shapes: labels [N] int64.
SampleOrder class_balanced(const at::Tensor& labels, int64_t samples = 0);

// `order`, rearranged so that samples of similar length are near each other and batches need little
// padding. In every `window` positions, samples are sorted by length and cut into groups of
// `group`; the groups are then shuffled. A group is one batch of all ranks together. Throws:
// invalid_argument if `lengths` does not have one entry per sample, or if window is not a multiple
// of group.
SampleOrder bucketed(const SampleOrder& order,
                     const std::vector<int64_t>& lengths,
                     int64_t group,
                     int64_t window);

}  // namespace muster
