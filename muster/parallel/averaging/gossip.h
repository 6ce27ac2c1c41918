// Gossip averaging: in every step each rank moves halfway towards one other rank, chosen by the
// step number. No rank waits for more than one peer.
//
//   muster::GossipAverage gossip(*net, ctx.process_group());
//   … loss.backward(); optimizer.step();
//   gossip.step();
//
// The mean over the ranks is preserved, and the ranks converge to it. Every rank meets every other
// once in N − 1 steps (N steps if N is odd: one rank rests in each), as in a round-robin
// tournament. Source: Boyd et al., "Randomized Gossip Algorithms" (2006); Lian et al., "Can
// Decentralized Algorithms Outperform Centralized Algorithms?" (2017).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "muster/base/tensors.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/averaging/given_parameters.h"

namespace muster {

// The rank that `rank` of `ranks` meets in `step`, from 0; nothing: it rests.
std::optional<int> gossip_peer(int rank, int ranks, int64_t step);

class GossipAverage {
 public:
  // `parameters`: a list, or a model. Collective: over the group. Throws: invalid_argument, on
  // every rank, for parameters that differ; later calls failed_precondition, as LocalSGD's.
  GossipAverage(const GivenParameters& parameters, ProcessGroup group);

  // Call it after the optimizer's step. Blocking: until this step's peer has arrived. Throws:
  // peer_failed if the peer has died.
  void step();

  // Gives every rank the mean over all: before an evaluation, a checkpoint, the end. Collective:
  // yes.
  void average();

  int64_t steps() const { return steps_; }

  // The number of steps, which decides who meets whom.
  SavedState state() const { return {.numbers = {{"steps", as_number(steps_)}}}; }
  void load_state(const SavedState& state) {
    steps_ = state.whole_number("GossipAverage", "steps");
  }

 private:
  ProcessGroup group_;
  std::shared_ptr<const TensorsOfModel> model_;
  Tensors parameters_;
  int64_t steps_ = 0;
};

}  // namespace muster
