#include "muster/run/context.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <utility>

namespace muster {

DistributedSampler Context::sampler(int64_t length, SamplerOptions options) {
  return sampler(options.shuffle ? shuffled(length) : in_order(length), std::move(options));
}

DistributedSampler Context::sampler(SampleOrder order, SamplerOptions options) {
  options.num_replicas = world_size();
  options.rank = rank();
  if (options.shares.empty()) options.shares = parts_.batch_shares;
  DistributedSampler sampler(std::move(order), options);
  sampler.set_first_epoch_check([group = process_group()](const SamplerIdentity& identity) mutable {
    const auto values = identity.values();
    const auto mine = at::tensor(std::vector<int64_t>(values.begin(), values.end()), at::kLong);
    auto all = at::empty({group.size(), mine.size(0)}, at::kLong);
    group.all_gather(all, mine);
    std::vector<SamplerIdentity> by_rank;
    for (int rank = 0; rank < group.size(); ++rank) {
      SamplerIdentity::Values row;
      std::copy_n(all[rank].const_data_ptr<int64_t>(), row.size(), row.begin());
      by_rank.push_back(SamplerIdentity::from_values(row));
    }
    check_samplers_agree(by_rank);
  });
  return sampler;
}

}  // namespace muster
