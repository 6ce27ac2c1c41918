#include "muster/run/context.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <filesystem>
#include <utility>

#include "muster/base/error.h"

namespace muster {

void Context::seed_all(uint64_t seed) const {
  at::manual_seed(seed);
}

std::string Context::run_dir(const std::string& asked) const {
  const std::string& folder = asked.empty() ? run_dir() : asked;
  if (folder.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "--run-dir: expected a folder, got none: this launcher gives none");
  }
  if (is_main()) std::filesystem::create_directories(folder);
  return folder;
}

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
