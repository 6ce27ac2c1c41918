// Which samples a rank trains on in an epoch: PyTorch's DistributedSampler, index for index, or one over
// another order (sample_order.h), or, with `shares`, unequal parts of each global batch for devices of
// unequal speed. Programs make one per data set and give it to a DataLoader; the Context compares the
// samplers of all ranks in the first epoch. Knows nothing of process groups: rank and size are arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "muster/data/sample_order.h"
#include "muster/data/sampler_identity.h"

namespace muster {

struct SamplerOptions {
  int num_replicas = 1;
  int rank = 0;
  bool shuffle = true;
  int64_t seed = 0;        // the same on every rank
  bool drop_last = false;  // cut the tail instead of repeating samples to fill it
  // false: the tail is neither cut nor filled, so some ranks have a sample less, perhaps a batch: for
  // evaluation, where every sample counts once.
  bool pad = true;
  // Samples that each rank takes of every global batch, in rank order; empty: all ranks as many, of batches
  // of any size. A global batch is the next sum(shares) samples of the epoch's order, as one process would
  // take them; a last one that is smaller is divided in the same proportion, each rank at least one sample
  // (then, and only then, samples are repeated to fill it).
  std::vector<int64_t> shares = {};
};

// A rank's samples of one epoch, each computed when it is asked for.
struct EpochSamples {
  int64_t size = 0;
  std::function<int64_t(int64_t i)> sample;
  std::function<int64_t(int64_t i)> position;  // in the order of all ranks' samples
};

class DistributedSampler {
 public:
  // Throws: invalid_argument when length or num_replicas is less than 1, or rank is out of range.
  // Source: torch.utils.data.DistributedSampler.
  explicit DistributedSampler(int64_t length, const SamplerOptions& options = {});
  // Over another order; `shuffle` says nothing then.
  explicit DistributedSampler(SampleOrder order, const SamplerOptions& options = {});

  // Says which epoch comes next, so that it gets its own order. Changes nothing where that epoch goes on in
  // its midst, where the other set_epoch has led and nothing was started yet: so a loop over epochs may call
  // it in each. Throws: invalid_argument for an epoch below 0.
  void set_epoch(int64_t epoch);
  // `consumed` is how many samples of it all ranks together have already used: the rest is divided among the
  // ranks there are now, so an epoch goes on after a restart with any number of ranks without using a sample
  // twice or losing one.
  // `consumed_of` is how many samples the data set had when they were used, 0 for unknown: the rest of an
  // epoch is known of the same data alone. Throws: invalid_argument when one is negative; failed_precondition
  // when samples were used of a data set of another size. Without `consumed_of`, a place beyond the end that
  // the ranks there are cannot have reached is warned of.
  void set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of = 0);

  // Other shares from the next start() on, of the same samples: what was used is used. Throws:
  // invalid_argument as the constructor.
  void set_shares(std::vector<int64_t> shares);

  // Starts an epoch: this rank's samples, in order. Warns, once, when an epoch starts with the order of the
  // one before because nobody called set_epoch. Without shuffle the order is the data set's.
  EpochSamples start();
  // The same, all at once.
  std::vector<int64_t> indices();

  // How many samples of an epoch this rank has; without shares, and with `pad`, the same on every rank.
  int64_t num_samples() const;

  // Samples of a batch of this rank, and of all ranks together, for the `batch`-th of an epoch; with shares
  // only. Throws: failed_precondition without.
  int64_t batch_samples(int64_t batch) const;
  int64_t global_samples(int64_t batch) const;
  // Empty without shares.
  const std::vector<int64_t>& shares() const { return options_.shares; }
  int64_t size() const { return num_samples(); }
  // Samples are numbers below it.
  int64_t dataset_size() const { return order_.dataset_size; }

  SamplerIdentity identity() const;
  const SampleOrder& order() const { return order_; }
  // Whether the epoch that set_epoch() has named was started.
  bool started() const { return epoch_started_; }

  // True when an epoch was started a second time with no set_epoch between (and with shuffle).
  bool epoch_repeated() const { return epoch_repeated_; }

  // `check` is called once, by the first indices(): where the ranks compare their samplers.
  void set_first_epoch_check(std::function<void(const SamplerIdentity&)> check) { check_ = std::move(check); }

 private:
  void check_place(int64_t epoch, int64_t consumed, int64_t consumed_of) const;
  void take_shares(std::vector<int64_t> shares);
  int64_t left() const;
  int64_t full_batches() const;
  const std::vector<int64_t>& parts_of(int64_t batch) const;
  int64_t position(int64_t i) const;

  SampleOrder order_;
  int64_t length_;  // of an epoch
  SamplerOptions options_;
  int64_t global_batch_ = 0;  // the sum of the shares
  std::vector<int64_t>
      last_parts_;  // each rank's part of a last, smaller global batch; empty when there is none
  int64_t epoch_ = 0;
  int64_t consumed_ = 0;
  bool epoch_started_ = false;
  bool epoch_repeated_ = false;
  std::function<void(const SamplerIdentity&)> check_;
};

}  // namespace muster
