// Makes batches whose costs are as equal over the ranks as possible. A global batch is the next
// samples of the epoch's order, as with other samplers. Each rank computes the same division of it
// by costs, and keeps its own part, so nothing is sent. Weights stay right, since a batch tells how
// many samples it has.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/data/batch_sampler.h"
#include "muster/data/mix.h"

namespace muster {

namespace {

// Says which of a global batch's samples, with these costs, rank `rank` of `ranks` gets. The first
// `ranks` of them, the costliest, go to one rank each, so nobody is left without.
Indices part_by_cost(const Doubles& costs, size_t ranks, size_t rank) {
  auto by_cost = mapped_indices(costs.size(), std::identity());
  std::ranges::stable_sort(by_cost, std::ranges::greater(), [&](size_t i) { return costs[i]; });
  std::vector<std::pair<double, size_t>> loads(ranks);  // cost and samples of each rank
  Indices mine;
  for (const size_t k : indices_of(by_cost)) {
    // Of equal loads it is the first, on every rank alike.
    const size_t least = k < ranks ? k : std::ranges::min_element(loads) - loads.begin();
    loads[least].first += costs[by_cost[k]];
    ++loads[least].second;
    if (least == rank)
      mine.push_back(by_cost[k]);
  }
  std::ranges::sort(mine);
  return mine;
}

// All copies share the costs, since every epoch holds a copy of the sampler or of its parts.
class CostBalanced : public BatchSampler {
 public:
  CostBalanced(SampleOrder order, Doubles costs, const CostBalancedOptions& options)
      : order_(std::move(order)),
        costs_(std::make_shared<Doubles>(std::move(costs))),
        options_(options) {}

  // A position in a data set of another size is refused, as it would leave out other samples.
  void set_epoch(int64_t epoch, int64_t consumed, int64_t consumed_of) override {
    const bool is_other_data =
        consumed > 0 && consumed_of > 0 && consumed_of != order_.dataset_size;
    if (epoch < 0 || consumed < 0 || is_other_data) {
      throw failed_precondition(
          "sampler: expected an epoch of 0 or more, and used samples of a data set of ",
          order_.dataset_size,
          ", got epoch ",
          epoch,
          ", ",
          consumed,
          " of ",
          consumed_of,
          "; give that data set, or begin the epoch anew with 0 used");
    }
    epoch_ = epoch;
    consumed_ = consumed;
    started_ = false;
  }

  int64_t epoch() const override { return epoch_; }
  bool started() const override { return started_; }

  EpochBatches start() override {
    if (check_)
      std::exchange(check_, nullptr)(identity());
    started_ = true;
    EpochBatches epoch = counted(consumed_);
    const auto order = order_when_needed(order_, options_.seed, epoch_);
    const auto positions = positions_of(order, consumed_, epoch.count_of_all);
    epoch.samples = [order, positions](int64_t batch) {
      Int64s samples = positions(batch);
      for (int64_t& sample : samples)
        sample = order(sample);
      return samples;
    };
    if (order_.repeats)
      epoch.positions = positions;
    epoch.count = [positions](int64_t batch) {
      return std::ssize(positions(batch));
    };
    epoch.next = [sampler = *this] {
      CostBalanced later = sampler;
      later.set_epoch(later.epoch_ + 1, 0, 0);
      return later.start();
    };
    return epoch;
  }

  // The sizes of the epoch from its beginning, whatever was used of it. Nothing starts.
  EpochBatches whole_epoch() const override {
    EpochBatches epoch = counted(0);
    const auto positions = positions_of(order_.epoch(options_.seed, epoch_), 0, epoch.count_of_all);
    epoch.count = [positions](int64_t batch) {
      return std::ssize(positions(batch));
    };
    return epoch;
  }

  int64_t dataset_size() const override { return order_.dataset_size; }
  int64_t order_number() const override { return number_of_order(order_.name, options_.seed); }
  void set_first_epoch_check(SamplerCheck check) override {
    check_ = std::move(check);
    is_compared_ = true;
  }
  std::optional<SamplerIdentity> uncompared() const override {
    return is_compared_ ? std::nullopt : std::optional(identity());
  }

 private:
  // The costs and the global batch are part of the order's name: ranks that differ in them would
  // divide a batch differently.
  SamplerIdentity identity() const {
    return {.num_replicas = options_.num_replicas,
            .rank = options_.rank,
            .seed = options_.seed,
            .epoch = epoch_,
            .length = order_.samples,
            .shuffle = order_.changes,
            .drop_last = options_.drop_last,
            .consumed = consumed_,
            .order = cat("cost_balanced(",
                         order_.name,
                         ", costs ",
                         fingerprint(*costs_),
                         ", global batch ",
                         options_.global_batch,
                         ")")};
  }

  // The counts of batches and of all ranks' samples, which need no costs.
  EpochBatches counted(int64_t consumed) const {
    const int64_t left = std::max<int64_t>(0, order_.samples - consumed);
    const int64_t global = options_.global_batch;
    const bool keeps_rest = left % global != 0 && !options_.drop_last;
    const int64_t size = left / global + (keeps_rest ? 1 : 0);
    return {.size = size,
            .size_of_all = size,
            // A last batch with fewer samples than ranks is filled up from the order's beginning.
            .count_of_all =
                [left, size, global, ranks = options_.num_replicas](int64_t batch) -> int64_t {
              if (batch >= size)
                return 0;
              return std::max<int64_t>(std::min(global, left - batch * global), ranks);
            },
            .consumed_after =
                [consumed, total = order_.samples, global](int64_t batch) {
                  return std::min(total, consumed + (batch + 1) * global);
                },
            .ranks = options_.num_replicas,
            .seed = options_.seed,
            .epoch = epoch_};
  }

  // Positions, in the epoch's order, of this rank's samples of a batch. All ranks compute the
  // division of the whole global batch; the rank only chooses which part is returned.
  std::function<Int64s(int64_t)> positions_of(
      const EpochOrder& order,
      int64_t consumed,
      const std::function<int64_t(int64_t)>& count_of_all) const {
    return
        [order, consumed, count_of_all, costs = costs_, options = options_, total = order_.samples](
            int64_t batch) {
          Int64s all(count_of_all(batch));
          Doubles of_each(all.size());
          int64_t next = consumed + batch * options.global_batch;
          for (size_t i = 0; i < all.size(); ++i, ++next) {
            all[i] = next % total;
            of_each[i] = (*costs)[order(all[i])];
          }
          return mapped(part_by_cost(of_each, options.num_replicas, options.rank),
                        [&](const size_t i) { return all[i]; });
        };
  }

  SampleOrder order_;
  std::shared_ptr<const Doubles> costs_;
  CostBalancedOptions options_;
  int64_t epoch_ = 0;
  int64_t consumed_ = 0;
  bool started_ = false;
  SamplerCheck check_;
  bool is_compared_ = false;
};

}  // namespace

// An infinite cost is refused, since it would hide all other costs of its rank.
std::shared_ptr<BatchSampler> cost_balanced(SampleOrder order,
                                            Doubles costs,
                                            const CostBalancedOptions& options) {
  const bool are_costs = std::ssize(costs) == order.dataset_size && all_of(costs, [](double cost) {
                           return cost >= 0 && std::isfinite(cost);
                         });
  if (!are_costs) {
    throw invalid_argument("sampler: expected ",
                           order.dataset_size,
                           " costs of 0 or more, one a sample, got ",
                           costs.size(),
                           " costs, or one that is negative or not finite");
  }
  const bool is_rank = options.rank >= 0 && options.rank < options.num_replicas;
  if (!is_rank || options.global_batch < options.num_replicas) {
    throw invalid_argument("sampler: expected a rank below ",
                           options.num_replicas,
                           " and a global batch of at least as many, got rank ",
                           options.rank,
                           " and global_batch ",
                           options.global_batch);
  }
  return std::make_shared<CostBalanced>(std::move(order), std::move(costs), options);
}

}  // namespace muster
