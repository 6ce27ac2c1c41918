// The newest shards, in memory, of a training that is sharded over ranks. Each rank keeps its own
// shard and that of one other rank, its ward, so that losing a rank does not lose its shard. It
// keeps two steps, because a rank may die while one is being saved. The counterpart of
// kept_state.h, which serves ranks that have the whole state. Used only by ShardedStore.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/checkpoint/training/kept_state.h"
#include "muster/comm/process_group.h"

namespace muster {

class KeptShards {
 public:
  // Copies this rank's shard, sends it to a neighbour, and receives that of its ward, into memory
  // that is reused. Collective: yes.
  void keep(const KeptState& mine, ProcessGroup& group);

  // This rank's shard of the newest step with all shards present, from another rank if necessary.
  // Nothing if there is no such step, or if the number of ranks has changed. Collective: yes.
  std::optional<KeptState> recover(ProcessGroup& group);

  // The number of ranks over which the newest step seen by recover() was sharded; 0: none.
  int ranks_then() const { return ranks_then_; }

 private:
  struct Shard {
    int rank = -1;  // its owner; -1: none
    std::string head;
    Tensor bytes;

    void make_room(int of, const std::string& its_head);
  };
  struct Kept {
    int64_t version = -1;  // KeptState::version(); -1: incomplete
    int world_size = 0;
    Shard mine = {}, wards = {};
  };
  const Shard* shard_of(int rank, int64_t version) const;
  std::string told() const;
  Shard received(const Ints& givers, int64_t version, ProcessGroup& group) const;

  std::array<Kept, 2> kept_;
  int ranks_then_ = 0;
  int distance_ = 0;           // from a rank to the neighbour that keeps its shard
  int distance_of_ranks_ = 0;  // for this number of ranks; 0: unknown
};

// The distance from a rank to the neighbour that keeps its shard: the smallest distance at which
// every rank's neighbour is on another host; 1 if there is none. `hosts`: one per rank.
int neighbour_distance(const Strings& hosts);

}  // namespace muster
