// Which samples a rank trains on in an epoch: PyTorch's DistributedSampler, index for index, or, with
// `shares`, unequal parts of each global batch for devices of unequal speed. Programs make
// one per data set and give it to a DataLoader; the Context compares the samplers of all ranks in the first
// epoch. Knows nothing of process groups: rank and size are arguments.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace muster {

struct SamplerOptions {
  int num_replicas = 1;
  int rank = 0;
  bool shuffle = true;
  int64_t seed = 0;        // the same on every rank
  bool drop_last = false;  // cut the tail instead of repeating samples to fill it
  // Samples that each rank takes of every global batch, in rank order; empty: all ranks as many, of batches
  // of any size. A global batch is the next sum(shares) samples of the epoch's order, as one process would
  // take them; a last one that is smaller is divided in the same proportion, each rank at least one sample
  // (then, and only then, samples are repeated to fill it).
  std::vector<int64_t> shares = {};
};

// All that decides which samples a rank gets. Ranks whose identities differ in more than the rank would
// silently train on overlapping samples.
struct SamplerIdentity {
  int64_t num_replicas = 1;
  int64_t rank = 0;
  int64_t seed = 0;
  int64_t epoch = 0;
  int64_t length = 0;
  bool shuffle = true;
  bool drop_last = false;
  int64_t consumed = 0;
  int64_t global_batch = 0;  // the sum of the shares; 0 without
  int64_t share = 0;         // this rank's
  int64_t share_begin = 0;   // the sum of the shares before it

  bool operator==(const SamplerIdentity&) const = default;

  // The same as numbers, for sending to other ranks.
  using Values = std::array<int64_t, 11>;
  Values values() const;
  static SamplerIdentity from_values(const Values& values);
};

// "num_replicas=4 rank=1 seed=0 epoch=2 length=1438 shuffle=true drop_last=false consumed=0",
// and with shares " global_batch=24 share=8 share_begin=16".
std::string to_string(const SamplerIdentity& identity);

// Checks what the ranks of one group gathered from each other, in rank order.
// Throws: invalid_argument naming the first field that differs, both values and both ranks.
void check_samplers_agree(const std::vector<SamplerIdentity>& by_rank);

class DistributedSampler {
 public:
  // Throws: invalid_argument when length or num_replicas is less than 1, or rank is out of range.
  // Source: torch.utils.data.DistributedSampler.
  explicit DistributedSampler(int64_t length, const SamplerOptions& options = {});

  // Says which epoch comes next, so that it gets its own order. `consumed` is how many samples of it all
  // ranks together have already used: the rest is divided among the ranks there are now, so an epoch goes on
  // after a restart with any number of ranks without using a sample twice or losing one.
  // `consumed_of` is how many samples the data set had when they were used, 0 for unknown: the rest of an
  // epoch is known of the same data alone. Throws: invalid_argument when one is negative; failed_precondition
  // when samples were used of a data set of another size. Without `consumed_of`, a place beyond the end that
  // the ranks there are cannot have reached is warned of.
  void set_epoch(int64_t epoch, int64_t consumed = 0, int64_t consumed_of = 0);

  // Starts an epoch: this rank's samples, in order. Warns, once, when an epoch starts with the order of the
  // one before because nobody called set_epoch. Without shuffle the order is the data set's.
  std::vector<int64_t> indices();

  // How many samples indices() gives; without shares the same on every rank.
  int64_t num_samples() const;

  // Samples of a batch of this rank, and of all ranks together, for the `batch`-th of an epoch; with shares
  // only. Throws: failed_precondition without.
  int64_t batch_samples(int64_t batch) const;
  int64_t global_samples(int64_t batch) const;
  // Empty without shares.
  const std::vector<int64_t>& shares() const { return options_.shares; }
  int64_t size() const { return num_samples(); }

  SamplerIdentity identity() const;

  // True when an epoch was started a second time with no set_epoch between (and with shuffle).
  bool epoch_repeated() const { return epoch_repeated_; }

  // `check` is called once, by the first indices(): where the ranks compare their samplers.
  void set_first_epoch_check(std::function<void(const SamplerIdentity&)> check) { check_ = std::move(check); }

 private:
  void check_place(int64_t epoch, int64_t consumed, int64_t consumed_of) const;
  int64_t left() const;
  int64_t full_batches() const;
  const std::vector<int64_t>& parts_of(int64_t batch) const;
  std::vector<int64_t> positions() const;

  int64_t length_;
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
