// Gossip averaging: in every step each rank halves the difference to one other rank, whose turn follows from
// the step. Nobody waits for more than one peer.
//
//   muster::GossipAverage gossip(net->parameters(), ctx.process_group());
//   … loss.backward(); optimizer.step();
//   gossip.step();
//
// The mean over the ranks stays what it is, and the ranks come closer to it. Every rank meets every other
// once in N − 1 steps (N where N is odd: one rests in each). Source: Boyd et al., "Randomized Gossip
// Algorithms" (2006); Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?" (2017).
// The turns are those of a round-robin tournament.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/named_state.h"

namespace muster {

// Who `rank` of `ranks` meets in `step`, from 0; nothing: it rests.
std::optional<int> gossip_peer(int rank, int ranks, int64_t step);

class GossipAverage {
 public:
  // Collective: over the group. Throws: invalid_argument, on every rank, for parameters that differ.
  GossipAverage(std::vector<at::Tensor> parameters, ProcessGroup group);

  // After the optimizer's step. Blocking: until this step's peer is there. Throws: peer_failed when it has
  // died.
  void step();

  // Every rank takes the mean over all: before an evaluation, a checkpoint, the end. Collective: yes.
  void average();

  int64_t steps() const { return steps_; }

  // The number of steps, which says who meets whom.
  NamedState state() const { return {.numbers = {{"steps", static_cast<double>(steps_)}}, .tensors = {}}; }
  template <class State>
  void load_state(const State& state) {
    steps_ = static_cast<int64_t>(NamedState::from(state).number("GossipAverage", "steps"));
  }

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> parameters_;
  int64_t steps_ = 0;
};

}  // namespace muster
