// Adapts batch shares to measured times: a rank that computes slowly, for whatever reason, gets
// fewer samples of each global batch. The global batches stay the same, and so, thanks to the batch
// weights, do the gradients.
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

#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"
#include "muster/train/share_search.h"

namespace muster {

struct RebalanceOptions {
  int64_t every = 50;      // steps between comparisons
  double at_least = 0.05;  // try other shares only if the step should get shorter by this fraction
};

class Rebalance {
 public:
  // `shares` are the shares that the loader starts with, one per rank. Throws: invalid_argument
  // unless there is one per rank, each at least 1, and for an `every` below 1.
  Rebalance(ProcessGroup group, std::vector<int64_t> shares, const RebalanceOptions& options = {});

  // Sets the loader's shares: now, whenever they change, and when they are loaded. The loader must
  // outlive this object. You can drive several loaders; set shares() on any other loader yourself.
  template <class Loader>
  void drive(Loader& loader) {
    drive_by([&loader](const std::vector<int64_t>& shares) { loader.set_shares(shares); });
  }

  // Call it after each step with the time that this rank took to compute `samples` samples, without
  // waiting for others. Returns true, on every rank alike, if the shares have changed; rank 0 logs
  // it. Collective: at every `every`-th call.
  bool step(double seconds, int64_t samples);

  const std::vector<int64_t>& shares() const { return search_.shares(); }

  // The shares; times are measured anew after loading. A state for another number of ranks, or with
  // another sum, is ignored, and rank 0 logs it: the present shares stay.
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
  std::vector<double> seconds_a_sample_;  // of the steps in this window
  int64_t steps_ = 0;
  std::vector<Taker> takers_;  // of the driven loaders
};

}  // namespace muster
