#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/batch_sampler.h"

namespace muster {

namespace {

// What rank `rank` of `ranks` gets of samples with these costs, which are at least as many as the ranks. The
// first `ranks` samples, the costliest, go to one rank each, so nobody is left without.
std::vector<int64_t> part_of_cost(const std::vector<int64_t>& samples, const std::vector<double>& costs,
                                  int64_t ranks, int64_t rank) {
  const auto cost_of = [&](int64_t sample) { return costs[static_cast<size_t>(sample)]; };
  std::vector<size_t> by_cost(samples.size());
  std::iota(by_cost.begin(), by_cost.end(), 0);
  std::stable_sort(by_cost.begin(), by_cost.end(),
                   [&](size_t a, size_t b) { return cost_of(samples[a]) > cost_of(samples[b]); });
  std::vector<double> sums(static_cast<size_t>(ranks), 0);
  std::vector<size_t> mine;
  for (size_t k = 0; k < by_cost.size(); ++k) {
    const auto least =
        k < sums.size() ? k : static_cast<size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
    sums[least] += cost_of(samples[by_cost[k]]);
    if (least == static_cast<size_t>(rank)) mine.push_back(by_cost[k]);
  }
  std::sort(mine.begin(), mine.end());
  std::vector<int64_t> part;
  for (const size_t i : mine) part.push_back(samples[i]);
  return part;
}

class CostBalanced : public BatchSampler {
 public:
  CostBalanced(SampleOrder order, std::vector<double> costs, const CostBalancedOptions& options)
      : order_(std::move(order)),
        costs_(std::make_shared<std::vector<double>>(std::move(costs))),
        options_(options) {}

  void set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of) override {
    if (epoch < 0 || consumed < 0 ||
        (consumed > 0 && consumed_of > 0 && consumed_of != order_.dataset_size)) {
      throw Error(ErrorCode::failed_precondition,
                  cat("sampler: expected an epoch of 0 or more, and samples used of the data set of ",
                      order_.dataset_size, ", got epoch ", epoch, ", ", consumed, " of ", consumed_of));
    }
    epoch_ = epoch;
    consumed_ = consumed;
  }

  EpochBatches start() override { return look(); }

  EpochBatches look() const override {
    const int64_t left = std::max<int64_t>(0, order_.samples - consumed_);
    const int64_t global = options_.global_batch;
    const int64_t size = options_.drop_last ? left / global : left / global + (left % global != 0 ? 1 : 0);
    // A last batch with fewer samples than ranks is filled up from the order's beginning.
    const auto count_of_all = [left, size, global, ranks = options_.num_replicas](int64_t batch) -> int64_t {
      if (batch >= size) return 0;
      return std::max<int64_t>(std::min(global, left - batch * global), ranks);
    };
    const auto samples = [order = order_.epoch(options_.seed, epoch_), costs = costs_, options = options_,
                          consumed = consumed_, total = order_.samples, count_of_all](int64_t batch) {
      std::vector<int64_t> all(static_cast<size_t>(count_of_all(batch)));
      for (size_t i = 0; i < all.size(); ++i)
        all[i] = order((consumed + batch * options.global_batch + static_cast<int64_t>(i)) % total);
      return part_of_cost(all, *costs, options.num_replicas, options.rank);
    };
    return {.size = size,
            .samples = samples,
            .count = [samples](int64_t batch) { return std::ssize(samples(batch)); },
            .count_of_all = count_of_all,
            .consumed_after = [consumed = consumed_, total = order_.samples, global](
                                  int64_t batch) { return std::min(total, consumed + (batch + 1) * global); },
            .ranks = options_.num_replicas,
            .seed = options_.seed,
            .epoch = epoch_};
  }

  int64_t dataset_size() const override { return order_.dataset_size; }

 private:
  SampleOrder order_;
  std::shared_ptr<const std::vector<double>> costs_;
  CostBalancedOptions options_;
  int64_t epoch_ = 0;
  int64_t consumed_ = 0;
};

}  // namespace

std::shared_ptr<BatchSampler> cost_balanced(SampleOrder order, std::vector<double> costs,
                                            const CostBalancedOptions& options) {
  const bool costs_right =
      std::ssize(costs) == order.dataset_size &&
      std::all_of(costs.begin(), costs.end(), [](double c) { return c >= 0 && std::isfinite(c); });
  if (!costs_right) {
    throw Error(ErrorCode::invalid_argument,
                cat("sampler: expected ", order.dataset_size, " costs of 0 or more, one a sample, got ",
                    costs.size(), " or one that is negative or not finite"));
  }
  const bool rank_right = options.rank >= 0 && options.rank < options.num_replicas;
  if (!rank_right || options.global_batch < options.num_replicas) {
    throw Error(ErrorCode::invalid_argument, cat("sampler: expected a rank below ", options.num_replicas,
                                                 " and a global batch of at least as many, "
                                                 "got rank ",
                                                 options.rank, " and global_batch ", options.global_batch));
  }
  return std::make_shared<CostBalanced>(std::move(order), std::move(costs), options);
}

}  // namespace muster
