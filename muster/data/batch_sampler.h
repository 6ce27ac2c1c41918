// Cuts an epoch into batches: which samples each batch of this rank has, and how many the ranks have
// together, from which a batch's weight follows. A loader (loader.h) takes one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "muster/data/distributed_sampler.h"

namespace muster {

// One epoch of one rank, computed batch by batch. Called by several threads.
struct EpochBatches {
  int64_t size = 0;         // batches of this rank
  int64_t size_of_all = 0;  // of the rank that has most
  std::function<std::vector<int64_t>(int64_t batch)> samples = {};
  // What the random numbers of each of them follow from, where samples come several times in an epoch: their
  // positions in it. Empty: the samples themselves.
  std::function<std::vector<int64_t>(int64_t batch)> positions = {};
  std::function<int64_t(int64_t batch)> count = {};         // of this rank's samples
  std::function<int64_t(int64_t batch)> count_of_all = {};  // of all ranks' together
  // Samples of the epoch that all ranks have used after this batch: where it goes on with other ranks.
  std::function<int64_t(int64_t batch)> consumed_after = {};
  int64_t ranks = 1;
  int64_t seed = 0;
  int64_t epoch = 0;
  // The whole epoch after it, divided in the same way, without starting it: workers go on into it. Empty:
  // they wait at the end until it is started.
  std::function<EpochBatches()> next = {};
};

// Of orders with this seed: equal where they are the same.
int64_t number_of_order(const SampleOrder& order, int64_t seed);

class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  // As DistributedSampler::set_epoch.
  virtual void set_epoch(int64_t epoch, int64_t consumed = 0, int64_t consumed_of = 0) = 0;
  // Which epoch it is at, and whether that was started.
  virtual int64_t epoch() const = 0;
  virtual bool started() const = 0;
  virtual EpochBatches start() = 0;
  // A whole epoch without starting it: its `samples` and `positions` are empty.
  virtual EpochBatches whole_epoch() const = 0;
  virtual int64_t dataset_size() const = 0;
  // A number made of the seed and all that decides the order: a place in an epoch means something in this one
  // alone.
  virtual int64_t order_number() const = 0;
  // Each rank's samples of a global batch from the next start() on. Throws: failed_precondition where batches
  // are not cut by shares.
  virtual void set_shares(const std::vector<int64_t>& shares);
  // `check` is called once, by the first start(): where the ranks compare their samplers. One's own sampler
  // that has no identity leaves it out.
  virtual void set_first_epoch_check(std::function<void(const SamplerIdentity&)> check);
};

// Every batch_size samples of this rank make a batch. With the sampler's shares batch_size must be this
// rank's. Throws: invalid_argument when it is less than 1, or another than the share.
std::shared_ptr<BatchSampler> batches_of(std::shared_ptr<DistributedSampler> sampler, int64_t batch_size,
                                         bool drop_last = false);

// Equal work in place of equal counts: each global batch, of `global_batch` samples of the order, is divided
// so that the ranks' sums of `costs` are as equal as can be (the costliest first, each to the rank with the
// least so far); each rank has at least one sample. Which samples make a global batch does not depend on the
// number of ranks.
struct CostBalancedOptions {
  int num_replicas = 1;
  int rank = 0;
  int64_t global_batch = 1;
  int64_t seed = 0;
  bool drop_last = false;  // leave out a last, smaller global batch, rather than fill it up
};
// Throws: invalid_argument when costs are not one for each sample of the data set or negative, when a global
// batch has fewer samples than there are ranks, or the rank is out of range.
std::shared_ptr<BatchSampler> cost_balanced(SampleOrder order, std::vector<double> costs,
                                            const CostBalancedOptions& options);

}  // namespace muster
