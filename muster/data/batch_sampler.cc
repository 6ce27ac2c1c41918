// Cuts a DistributedSampler's samples into batches. BatchCounts says how many batches and samples
// this rank, and all ranks together, have. EvenBatches joins the counts with the samples. Both work
// on copies of the sampler, so that a running epoch does not change when the sampler is moved.
#include "muster/data/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/data/mix.h"

namespace muster {

namespace {

// Does not overflow for the largest sizes, as at::ceil_div does.
int64_t ceil_div(int64_t samples, int64_t size) {
  return samples / size + (samples % size != 0 ? 1 : 0);
}

// A rank's samples of an epoch are batches of one size, and a last, smaller one.
class BatchCounts {
 public:
  BatchCounts(const DistributedSampler& sampler, int64_t batch_size, bool drop_last)
      : sampler_(sampler), identity_(sampler.identity()), batch_size_(batch_size) {
    const int64_t mine = sampler.num_samples();
    used_ = drop_last ? mine - mine % batch_size : mine;
    left_ = std::max<int64_t>(0, identity_.length - identity_.consumed);
    // A batch may be larger than all there is.
    const int64_t most = left_ / identity_.num_replicas + 1;
    global_ =
        has_shares() ? identity_.global_batch : std::min(batch_size, most) * identity_.num_replicas;
  }

  int64_t size() const { return batches_of(used_); }
  // Without padding some ranks have a sample more than others, the first of them always.
  int64_t size_of_all() const {
    if (identity_.pad)
      return size();
    if (has_shares())
      return ceil_div(left_, global_);
    return batches_of(ceil_div(left_, identity_.num_replicas));
  }
  int64_t size_of_least() const {
    if (identity_.pad)
      return size();
    if (has_shares())
      return left_ / global_ + (sampler_.gives_all_the_rest() ? 1 : 0);
    return batches_of(left_ / identity_.num_replicas);
  }
  // A number behind the last batch counts 0 samples, since other ranks may have more batches.
  int64_t count(int64_t batch) const {
    return batch < size() ? std::min(used_ - batch * batch_size_, batch_size_) : 0;
  }
  int64_t count_of_all(int64_t batch) const {
    if (batch >= size_of_all())
      return 0;
    if (has_shares())
      return sampler_.global_samples(batch);
    return identity_.pad ? count(batch) * identity_.num_replicas
                         : std::min(left_ - batch * global_, global_);
  }
  // Samples count up to the epoch's end, and those that padding repeats do not.
  int64_t consumed_after(int64_t batch) const {
    return identity_.consumed + std::min(left_, (batch + 1) * global_);
  }

 private:
  bool has_shares() const { return !sampler_.shares().empty(); }
  int64_t batches_of(int64_t samples) const { return ceil_div(samples, batch_size_); }

  const DistributedSampler sampler_;  // as it is now, whatever set_epoch says later
  SamplerIdentity identity_;
  int64_t batch_size_;
  int64_t used_ = 0;
  int64_t left_ = 0;    // samples of the epoch that nobody has used
  int64_t global_ = 0;  // samples of one batch of each rank together
};

[[noreturn]] void refuse_shares(const std::string& expected, const std::string& got) {
  throw failed_precondition("batch shares: expected ", expected, ", got ", got);
}

class EvenBatches : public BatchSampler {
 public:
  EvenBatches(std::shared_ptr<DistributedSampler> sampler, int64_t batch_size, bool drop_last)
      : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {}

  void set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of) override {
    sampler_->set_epoch(epoch, consumed, consumed_of);
  }

  int64_t epoch() const override { return sampler_->identity().epoch; }
  bool started() const override { return sampler_->started(); }

  EpochBatches start() override { return start(*sampler_, batch_size_, drop_last_); }

  // A copy is moved to the epoch's beginning, so the running epoch keeps its place.
  EpochBatches whole_epoch() const override {
    DistributedSampler whole = *sampler_;
    whole.set_epoch(whole.identity().epoch, 0);
    return counted(whole, batch_size_, drop_last_);
  }

  int64_t dataset_size() const override { return sampler_->dataset_size(); }
  void set_first_epoch_check(SamplerCheck check) override {
    sampler_->set_first_epoch_check(std::move(check));
  }
  std::optional<SamplerIdentity> uncompared() const override {
    return sampler_->is_compared() ? std::nullopt : std::optional(sampler_->identity());
  }
  int64_t order_number() const override {
    const SamplerIdentity identity = sampler_->identity();
    return number_of_order(identity.order, identity.seed);
  }

  // The sum of the shares must stay the global batch, so that a step keeps its size when ranks
  // trade samples.
  void set_shares(const Int64s& shares) override {
    if (drop_last_)
      refuse_shares("batches without drop_last, as the sampler decides that with shares",
                    "drop_last");
    const SamplerIdentity identity = sampler_->identity();
    const int64_t global_batch =
        identity.global_batch > 0 ? identity.global_batch : batch_size_ * identity.num_replicas;
    if (sum_of(shares) != global_batch)
      refuse_shares(cat("shares of the global batch of ", global_batch),
                    cat("[", join(shares, ", "), "]"));
    sampler_->set_shares(shares);
    batch_size_ = shares[identity.rank];
  }

 private:
  // Starts the sampler's epoch. `epoch.next` does the same for the one after, on a copy.
  static EpochBatches start(DistributedSampler& sampler, int64_t batch_size, bool drop_last) {
    EpochBatches epoch = counted(sampler, batch_size, drop_last);
    const EpochSamples samples = sampler.start();
    const auto of_batch = [count = epoch.count,
                           batch_size](const std::function<int64_t(int64_t)>& of) {
      return [count, batch_size, of](int64_t batch) {
        Int64s mine(count(batch));
        int64_t next = batch * batch_size;
        for (int64_t& sample : mine)
          sample = of(next++);
        return mine;
      };
    };
    epoch.samples = of_batch(samples.sample);
    if (sampler.order().repeats)
      epoch.positions = of_batch(samples.position);
    epoch.next = [sampler, batch_size, drop_last] {
      DistributedSampler later = sampler;
      later.set_epoch(later.identity().epoch + 1, 0);
      return start(later, batch_size, drop_last);
    };
    return epoch;
  }

  // The counts alone: nothing starts, and no sample is computed.
  static EpochBatches counted(const DistributedSampler& sampler,
                              int64_t batch_size,
                              bool drop_last) {
    const auto counts = std::make_shared<const BatchCounts>(sampler, batch_size, drop_last);
    return {.size = counts->size(),
            .size_of_all = counts->size_of_all(),
            .size_of_least = counts->size_of_least(),
            .count = [counts](int64_t batch) { return counts->count(batch); },
            .count_of_all = [counts](int64_t batch) { return counts->count_of_all(batch); },
            .consumed_after = [counts](int64_t batch) { return counts->consumed_after(batch); },
            .ranks = sampler.identity().num_replicas,
            .seed = sampler.identity().seed,
            .epoch = sampler.identity().epoch};
  }

  std::shared_ptr<DistributedSampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
};

}  // namespace

// The number has 52 bits, which a double holds too: checkpoints may store numbers as doubles.
int64_t number_of_order(const std::string& name, int64_t seed) {
  return static_cast<int64_t>(mixed(std::hash<std::string>()(name), seed) >> 12);
}

void BatchSampler::set_shares(const Int64s& /*shares*/) {
  refuse_shares("a sampler that has shares",
                "one that chooses the shares itself; leave them to it");
}

// A sampler whose order is compared keeps `check`.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void BatchSampler::set_first_epoch_check(SamplerCheck /*check*/) {}

std::optional<SamplerIdentity> BatchSampler::uncompared() const {
  return std::nullopt;
}

// All arguments are checked here, so that cutting an epoch needs no checks.
std::shared_ptr<BatchSampler> batches_of(std::shared_ptr<DistributedSampler> sampler,
                                         int64_t batch_size,
                                         bool drop_last) {
  if (batch_size < 1) {
    throw invalid_argument("data loader: expected a batch size of at least 1, got ",
                           batch_size,
                           "; pass the samples of one rank's batch");
  }
  const SamplerIdentity identity = sampler->identity();
  if (drop_last && !identity.pad) {
    throw invalid_argument(
        "data loader: expected drop_last or a sampler with pad = false, got both: ranks "
        "would drop different numbers; leave one out");
  }
  if (!sampler->shares().empty() && (identity.share != batch_size || drop_last)) {
    throw invalid_argument("data loader: expected batch_size ",
                           identity.share,
                           ", this rank's share of the global batch of ",
                           identity.global_batch,
                           ", and drop_last of the sampler alone, got batch_size ",
                           batch_size,
                           drop_last ? " and drop_last" : "",
                           "; pass ctx.batch_size(…)");
  }
  return std::make_shared<EvenBatches>(std::move(sampler), batch_size, drop_last);
}

}  // namespace muster
