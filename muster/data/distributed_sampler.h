// Chooses the samples that a rank trains on in an epoch. It is PyTorch's DistributedSampler, index
// for index. It can also use another order (sample_order.h) or, with `shares`, divide each global
// batch unequally, for devices of unequal speed. Programs make one per dataset and give it to a
// DataLoader; the Context compares the samplers of all ranks in the first epoch. Knows nothing of
// process groups: rank and size are arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/data/sample_order.h"
#include "muster/data/sampler_identity.h"

namespace muster {

struct SamplerOptions {
  int num_replicas = 1;
  int rank = 0;
  bool shuffle = true;
  int64_t seed = 0;        // the same on every rank
  bool drop_last = false;  // cut the tail instead of padding it with repeated samples
  // false: the tail is neither cut nor padded, so some ranks have one sample fewer, perhaps one
  // batch fewer. For evaluation, where every sample must count exactly once.
  bool pad = true;
  // The samples that each rank takes of every global batch, in rank order. Empty: the same number
  // on all ranks, in batches of any size. A global batch is the next sum(shares) samples of the
  // epoch's order, as one process would take them. A smaller last one is divided in the same
  // proportion, with at least one sample per rank (samples are repeated only if that needs more
  // than there are).
  std::vector<int64_t> shares{};
};

// A rank's samples of one epoch, each computed on demand.
struct EpochSamples {
  int64_t size = 0;
  std::function<int64_t(int64_t i)> sample;
  std::function<int64_t(int64_t i)> position;  // in the order of all ranks' samples
};

class DistributedSampler {
 public:
  // Throws: invalid_argument if length or num_replicas is less than 1, or rank is out of range.
  // Source: torch.utils.data.DistributedSampler.
  explicit DistributedSampler(int64_t length, const SamplerOptions& options = {});
  // Over another order; `shuffle` is then ignored.
  explicit DistributedSampler(SampleOrder order, const SamplerOptions& options = {});

  // Sets the next epoch, so that it gets its own order. A loop over epochs may call it each time:
  // it does nothing if the other set_epoch has just resumed this epoch in the middle and the epoch
  // has not been started yet. Throws: invalid_argument for a negative epoch.
  void set_epoch(int64_t epoch);
  // Resumes an epoch of which all ranks together have used `consumed` samples. The rest is divided
  // among the present ranks, so an epoch can go on with any number of ranks without repeating or
  // losing a sample. `consumed_of` is the size of the dataset at that time (0: unknown), because
  // the rest of an epoch is defined only for the same data. Without it, a position beyond the end
  // that the present ranks cannot have reached gets a warning. Throws: invalid_argument for
  // negative numbers; failed_precondition if the dataset's size has changed.
  void set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of = 0);

  // Sets other shares from the next start() on; samples already used stay used. Throws: as the
  // constructor.
  void set_shares(std::vector<int64_t> shares);

  // Starts an epoch and returns this rank's samples, in order. Warns once if an epoch starts with
  // the previous epoch's order because set_epoch was not called. Without shuffle the order is the
  // dataset's.
  EpochSamples start();
  // The same, computed all at once.
  std::vector<int64_t> indices();

  // This rank's samples per epoch; the same on every rank without shares and with `pad`.
  int64_t num_samples() const;

  // The samples of this rank, and of all ranks together, in an epoch's `batch`-th batch. Throws:
  // failed_precondition without shares.
  int64_t batch_samples(int64_t batch) const;
  int64_t global_samples(int64_t batch) const;
  // Whether every rank has some of a last, smaller global batch.
  bool gives_all_the_rest() const;
  // Empty without shares.
  const std::vector<int64_t>& shares() const { return options_.shares; }
  int64_t size() const { return num_samples(); }
  // Sample indices are below it.
  int64_t dataset_size() const { return order_.dataset_size; }

  // Which samples the indices are of, where data sets of one size differ (Subset::identity). It
  // becomes a part of the order's name, so that ranks and positions of other samples do not agree.
  void set_data(uint64_t identity) { data_ = identity; }

  SamplerIdentity identity() const;
  const SampleOrder& order() const { return order_; }
  // Whether the epoch set by set_epoch() was started.
  bool started() const { return epoch_started_; }

  // Whether an epoch was started again without set_epoch in between (and with shuffle).
  bool epoch_repeated() const { return epoch_repeated_; }

  // The first start() calls `check` once; the ranks compare their samplers in it.
  void set_first_epoch_check(SamplerCheck check) {
    check_ = std::move(check);
    is_compared_ = true;
  }
  // Whether such a check was set.
  bool is_compared() const { return is_compared_; }

 private:
  void check_place(int64_t epoch, int64_t consumed, int64_t consumed_of) const;
  void take_shares(Int64s shares);
  int64_t left() const;
  int64_t full_batches() const;
  const Int64s& parts_of(int64_t batch) const;
  int64_t position(int64_t i) const;

  SampleOrder order_;
  int64_t length_;  // of an epoch
  SamplerOptions options_;
  int64_t global_batch_ = 0;  // the sum of the shares
  Int64s last_parts_;  // each rank's part of a last, smaller global batch; empty when there is none
  int64_t epoch_ = 0;
  int64_t consumed_ = 0;
  bool epoch_started_ = false;
  bool epoch_repeated_ = false;
  std::optional<uint64_t> data_;
  SamplerCheck check_;
  bool is_compared_ = false;
};

}  // namespace muster
