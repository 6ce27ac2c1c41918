// Batch shares that follow what the ranks really take: a rank that computes slowly, for whatever reason, gets
// fewer samples of each global batch. The global batches stay what they are, and so do, by their batches'
// weights, the gradients.
//
//   muster::Rebalance rebalance(ctx.process_group(), {32, 32});
//   rebalance.drive(loader);
//   checkpoints.add("data", loader).add("rebalance", rebalance);
//   for (const auto& batch : loader.steps(1000)) {
//     step(batch, ...);
//     if (batch.last) rebalance.step(model.reducer().compute_seconds(), batch.samples);
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/train/saved_state.h"
#include "muster/train/share_search.h"

namespace muster {

struct RebalanceOptions {
  int64_t every = 50;      // steps, after which the ranks compare
  double at_least = 0.05;  // others are tried only for a step that is expected to be shorter by that part
};

class Rebalance {
 public:
  // `shares`: of each rank, that the loader begins with. Throws: invalid_argument for other than one a rank,
  // each at least 1, and for `every` less than 1.
  Rebalance(ProcessGroup group, std::vector<int64_t> shares, const RebalanceOptions& options = {});

  // The loader takes the shares: now, whenever they change, and when they are loaded. It must outlive this
  // object. Any number of loaders; one that is not driven is given shares() by the training loop.
  template <class Loader>
  void drive(Loader& loader) {
    drive_by([&loader](const std::vector<int64_t>& shares) { loader.set_shares(shares); });
  }

  // After each step: what this rank took to compute so many samples, without waiting for others. True where
  // the shares are others from now on, on every rank alike; rank 0 says so in a line. Collective: at each
  // `every`-th call.
  bool step(double seconds, int64_t samples);

  const std::vector<int64_t>& shares() const { return search_.shares(); }

  // The shares; the ranks' times are measured anew. A state of another number of ranks, or of another sum, is
  // left alone, and rank 0 says so: these shares go on.
  SavedState state() const;
  void load_state(const SavedState& state);

 private:
  using Taker = std::function<void(const std::vector<int64_t>& shares)>;

  void drive_by(Taker taker);
  void give_shares() const;
  bool compare();

  ProcessGroup group_;
  RebalanceOptions options_;
  ShareSearch search_;
  std::vector<double> seconds_a_sample_;  // of this window's steps
  int64_t steps_ = 0;
  std::vector<Taker> takers_;  // of the driven loaders
};

}  // namespace muster
