// Gossip: in every step a rank averages with one other. The peer follows from rank and step, so
// nobody needs to ask, and in as many steps as there are other ranks everybody meets everybody.
#include "muster/parallel/averaging/gossip.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "muster/base/torch_names.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/averaging/average.h"

namespace muster {

// The circle method: all but the last rank stand on a circle, which turns. A rank that would meet
// itself meets the last one. With an odd number of ranks the last one is nobody.
std::optional<int> gossip_peer(int rank, int ranks, int64_t step) {
  if (ranks < 2)
    return std::nullopt;
  const int last = ranks % 2 == 0 ? ranks - 1 : ranks;
  const int turn = static_cast<int>(step % last);
  int peer = 0;
  if (rank == last) {
    // Only the last rank searches: its peer is the rank that would meet itself in this turn.
    while (2 * peer % last != turn)
      ++peer;
  } else {
    peer = (turn - rank + last) % last;
    if (peer == rank)
      peer = last;
  }
  // The extra place of an odd number of ranks is nobody, so this rank rests.
  if (peer == ranks)
    return std::nullopt;
  return peer;
}

GossipAverage::GossipAverage(const GivenParameters& parameters, ProcessGroup group)
    : group_(std::move(group)),
      model_(parameters.model),
      parameters_(averaged_ones(parameters.tensors)) {
  require_agreement(group_, "GossipAverage", "", terms_of("parameter", parameters.tensors));
}

// All ranks call it equally often, since the count decides who meets whom. Only the two ranks of a
// pair exchange messages.
void GossipAverage::step() {
  require_present("GossipAverage", model_, parameters_);
  const auto peer = gossip_peer(group_.rank(), group_.size(), steps_++);
  if (!peer)
    return;
  const NoGradGuard no_grad;
  for (const Tensors& lot : lots_of(parameters_)) {
    const Tensor mine = flat_of(lot);
    const Tensor other = at::empty_like(mine);
    // One after the other: two sends that meet may wait for each other over NCCL.
    if (group_.rank() < *peer) {
      group_.send(mine, *peer);
      group_.recv(other, *peer);
    } else {
      group_.recv(other, *peer);
      group_.send(mine, *peer);
    }
    copy_from_flat(mine.add_(other).div_(2), lot);
  }
}

// All ranks call it together, for instance before an evaluation.
void GossipAverage::average() {
  require_present("GossipAverage", model_, parameters_);
  average_over(group_, parameters_);
}

}  // namespace muster
