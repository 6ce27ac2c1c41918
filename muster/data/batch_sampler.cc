#include "muster/data/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// A rank's samples of an epoch in batches of one size, and the last.
class EvenCut {
 public:
  EvenCut(const DistributedSampler& sampler, int64_t batch_size, bool drop_last)
      : sampler_(sampler), identity_(sampler.identity()), batch_size_(batch_size) {
    const int64_t mine = sampler.num_samples();
    used_ = drop_last ? mine - mine % batch_size : mine;
    left_ = std::max<int64_t>(0, identity_.length - identity_.consumed);
    // A batch may be larger than all there is.
    const int64_t most = left_ / identity_.num_replicas + 1;
    global_ = has_shares() ? identity_.global_batch : std::min(batch_size, most) * identity_.num_replicas;
  }

  int64_t size() const { return used_ / batch_size_ + (used_ % batch_size_ != 0 ? 1 : 0); }
  int64_t count(int64_t batch) const {
    return batch < size() ? std::min(used_ - batch * batch_size_, batch_size_) : 0;
  }
  int64_t count_of_all(int64_t batch) const {
    if (batch >= size()) return 0;
    if (has_shares()) return sampler_.global_samples(batch);
    return identity_.pad ? count(batch) * identity_.num_replicas : std::min(left_ - batch * global_, global_);
  }
  int64_t consumed_after(int64_t batch) const {
    return identity_.consumed + std::min(left_, (batch + 1) * global_);
  }

 private:
  bool has_shares() const { return !sampler_.shares().empty(); }

  const DistributedSampler sampler_;  // as it is now, whatever set_epoch says later
  SamplerIdentity identity_;
  int64_t batch_size_;
  int64_t used_ = 0;
  int64_t left_ = 0;    // samples of the epoch that nobody has used
  int64_t global_ = 0;  // samples of all ranks' batches together
};

class EvenBatches : public BatchSampler {
 public:
  EvenBatches(std::shared_ptr<DistributedSampler> sampler, int64_t batch_size, bool drop_last)
      : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {}

  void set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of) override {
    sampler_->set_epoch(epoch, consumed, consumed_of);
  }

  EpochBatches start() override {
    EpochBatches epoch = look();
    epoch.samples = [samples = sampler_->start(), count = epoch.count, size = batch_size_](int64_t batch) {
      std::vector<int64_t> mine(static_cast<size_t>(count(batch)));
      for (size_t i = 0; i < mine.size(); ++i)
        mine[i] = samples.sample(batch * size + static_cast<int64_t>(i));
      return mine;
    };
    return epoch;
  }

  EpochBatches look() const override {
    const auto cut = std::make_shared<const EvenCut>(*sampler_, batch_size_, drop_last_);
    return {.size = cut->size(),
            .samples = {},
            .count = [cut](int64_t batch) { return cut->count(batch); },
            .count_of_all = [cut](int64_t batch) { return cut->count_of_all(batch); },
            .consumed_after = [cut](int64_t batch) { return cut->consumed_after(batch); },
            .ranks = sampler_->identity().num_replicas,
            .seed = sampler_->identity().seed,
            .epoch = sampler_->identity().epoch};
  }

  int64_t dataset_size() const override { return sampler_->dataset_size(); }

 private:
  std::shared_ptr<DistributedSampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
};

}  // namespace

std::shared_ptr<BatchSampler> batches_of(std::shared_ptr<DistributedSampler> sampler, int64_t batch_size,
                                         bool drop_last) {
  if (batch_size < 1) {
    throw Error(ErrorCode::invalid_argument, cat("data loader: expected a batch size of at least 1, got ",
                                                 batch_size, "; pass the samples of one rank's batch"));
  }
  const SamplerIdentity identity = sampler->identity();
  if (!sampler->shares().empty() && (identity.share != batch_size || drop_last)) {
    throw Error(ErrorCode::invalid_argument,
                cat("data loader: expected batch_size ", identity.share,
                    ", this rank's share of the global batch of ", identity.global_batch,
                    ", and drop_last of the sampler alone, got batch_size ", batch_size,
                    drop_last ? " and drop_last" : "", "; pass ctx.batch_size(…)"));
  }
  return std::make_shared<EvenBatches>(std::move(sampler), batch_size, drop_last);
}

}  // namespace muster
