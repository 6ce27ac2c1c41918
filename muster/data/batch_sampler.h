// Forms the batches of an epoch: the samples in each of this rank's batches, and how many the ranks
// have together, which gives a batch its weight. A loader (loader.h) takes one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/data/distributed_sampler.h"

namespace muster {

// One epoch of one rank, computed batch by batch. Called by several threads.
struct EpochBatches {
  int64_t size = 0;         // batches of this rank
  int64_t size_of_all = 0;  // of the rank with the most
  // Of the rank with the fewest. Unset: as many as of the rank with the most.
  std::optional<int64_t> size_of_least{};
  std::function<std::vector<int64_t>(int64_t batch)> samples{};
  // The positions in the epoch that seed the samples' random numbers, for orders that repeat
  // samples. Empty: the sample indices seed them.
  std::function<std::vector<int64_t>(int64_t batch)> positions{};
  std::function<int64_t(int64_t batch)> count{};         // of this rank's samples
  std::function<int64_t(int64_t batch)> count_of_all{};  // of all ranks together
  // Samples of the epoch that all ranks have used after this batch: where other ranks would resume
  // it.
  std::function<int64_t(int64_t batch)> consumed_after{};
  int64_t ranks = 1;
  int64_t seed = 0;
  int64_t epoch = 0;
  // The next whole epoch, divided in the same way, without starting it, so that workers can
  // prefetch into it. Empty: workers wait until it is started.
  std::function<EpochBatches()> next{};
};

using EpochBatchesPtr = std::shared_ptr<const EpochBatches>;

// A hash of the order of this name with this seed; equal orders have equal hashes.
int64_t number_of_order(const std::string& name, int64_t seed);

class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  // As DistributedSampler::set_epoch.
  virtual void set_epoch(int64_t epoch, int64_t consumed = 0, int64_t consumed_of = 0) = 0;
  // The current epoch, and whether it was started.
  virtual int64_t epoch() const = 0;
  virtual bool started() const = 0;
  virtual EpochBatches start() = 0;
  // A whole epoch, without starting it: its `samples` and `positions` are empty. The later epochs
  // have batches of the same numbers, by which a step over the ends of epochs is weighed.
  virtual EpochBatches whole_epoch() const = 0;
  virtual int64_t dataset_size() const = 0;
  // A hash of the seed and everything that decides the order. A position in an epoch is valid only
  // for the same order.
  virtual int64_t order_number() const = 0;
  // Sets each rank's samples of a global batch, from the next start() on. Throws:
  // failed_precondition if the sampler does not use shares.
  virtual void set_shares(const std::vector<int64_t>& shares);
  // The first start() calls `check` once; the ranks compare their samplers in it. A custom sampler
  // without an identity need not override this.
  virtual void set_first_epoch_check(SamplerCheck check);
  // What a job compares of a sampler without such a check (own_loaders.h); nothing: nothing.
  virtual std::optional<SamplerIdentity> uncompared() const;
};

// Makes a batch of every batch_size samples of this rank. If the sampler has shares, batch_size
// must be this rank's share. Throws: invalid_argument if it is not, or is less than 1.
std::shared_ptr<BatchSampler> batches_of(std::shared_ptr<DistributedSampler> sampler,
                                         int64_t batch_size,
                                         bool drop_last = false);

// Balances work instead of counts: divides each global batch of `global_batch` samples so that the
// ranks' sums of `costs` are as equal as possible. The costliest sample goes first, each to the
// rank with the least so far; every rank gets at least one. The samples of a global batch do not
// depend on the number of ranks.
struct CostBalancedOptions {
  int num_replicas = 1;
  int rank = 0;
  int64_t global_batch = 1;
  int64_t seed = 0;
  bool drop_last = false;  // drop a smaller last global batch instead of padding it
};
// Throws: invalid_argument if `costs` does not have one non-negative number per sample of the
// dataset, if a global batch has fewer samples than there are ranks, or if the rank is out of
// range.
std::shared_ptr<BatchSampler> cost_balanced(SampleOrder order,
                                            std::vector<double> costs,
                                            const CostBalancedOptions& options);

}  // namespace muster
