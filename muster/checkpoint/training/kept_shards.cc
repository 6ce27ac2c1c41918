// A shard is one block of bytes with a head that describes it (packed_state.h). After ranks were
// replaced, all ranks say whose shards of which versions they have. The newest version that is
// whole wins, and each rank that lacks its shard gets it from the one that kept it.
#include "muster/checkpoint/training/kept_shards.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/host_identity.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/packed_state.h"

namespace muster {

namespace {

// A shard that a rank says it has.
struct ToldShard {
  int holder = 0;
  int64_t version = 0;
  int world_size = 0;
  int rank = 0;
};

using ToldShards = std::vector<ToldShard>;

// Reads what KeptShards::told() of each rank has said.
ToldShards shards_told(const Strings& by_rank) {
  ToldShards shards;
  for (const int holder : int_indices_of(by_rank))
    for (const auto& shard : nlohmann::json::parse(by_rank[holder]))
      shards.push_back({holder, shard[0], shard[1], shard[2]});
  return shards;
}

// Returns 0 if there are no shards.
int ranks_of_newest(const ToldShards& shards) {
  const auto newest = std::ranges::max_element(shards, {}, &ToldShard::version);
  return newest == shards.end() ? 0 : newest->world_size;
}

// Returns who gives each rank its shard of a version: the rank itself, if it has it. Empty if
// nobody has some rank's shard.
Ints givers_of(const ToldShards& shards, int64_t version, int size) {
  constexpr int kNobody = -1;
  Ints givers(size, kNobody);
  for (const ToldShard& shard : shards) {
    if (shard.version != version || shard.world_size != size || shard.rank >= size)
      continue;
    int& giver = givers[shard.rank];
    if (giver == kNobody || shard.holder == shard.rank)
      giver = shard.holder;
  }
  if (contains(givers, kNobody))
    return {};
  return givers;
}

// A version, and who gives each rank its shard of it.
struct WholeVersion {
  int64_t version = -1;
  Ints givers{};
};

// Returns the newest version of which every rank's shard is somewhere, if there is one.
std::optional<WholeVersion> newest_whole(const ToldShards& shards, int size) {
  auto versions = mapped_to<std::set<int64_t, std::greater<>>>(shards, &ToldShard::version);
  for (const int64_t version : versions) {
    const Ints givers = givers_of(shards, version, size);
    if (!givers.empty())
      return WholeVersion{.version = version, .givers = givers};
  }
  return std::nullopt;
}

}  // namespace

// One distance for all ranks keeps the exchange a single step.
int neighbour_distance(const Strings& hosts) {
  const int size = static_cast<int>(hosts.size());
  const auto every_neighbour_is_elsewhere = [&](int distance) {
    for (const int rank : indices_below(size))
      if (hosts[rank] == hosts[(rank + distance) % size])
        return false;
    return true;
  };
  for (int distance = 1; distance < size; ++distance)
    if (every_neighbour_is_elsewhere(distance))
      return distance;
  return size > 1 ? 1 : 0;
}

// The memory is used again as long as the size stays, since new memory costs more than a copy.
void KeptShards::Shard::make_room(int of, const std::string& its_head) {
  const int64_t size = packed_bytes(its_head);
  rank = of;
  head = its_head;
  if (!bytes.defined() || bytes.numel() != size)
    bytes = at::empty({size}, kByte);
}

// A rank that tells what it keeps now has kept the version before. So when all have told, the
// version before that one may be written over.
void KeptShards::keep(const KeptState& mine, ProcessGroup& group) {
  const int size = group.size(), rank = group.rank();
  if (distance_of_ranks_ != size) {
    distance_ = neighbour_distance(group.all_gather_bytes(host_identity(), "hosts"));
    distance_of_ranks_ = size;
  }
  // The neighbour needs the head to make room for the bytes.
  const std::string head = head_of(mine);
  const auto heads = group.all_gather_bytes(head, "parts in memory");
  group.wait_for_gpu();
  Kept& kept = kept_[0].version < kept_[1].version ? kept_[0] : kept_[1];
  kept.version = -1;
  kept.world_size = size;
  kept.mine.make_room(rank, head);
  const Tensors from = packed_tensors(mine.image);
  const Tensors to = packed_tensors(views_by_head(head, kept.mine.bytes).image);
  for (const size_t i : indices_of(from))
    to[i].copy_(from[i]);
  const int neighbour = (rank + distance_) % size, ward = (rank - distance_ + size) % size;
  if (neighbour != rank) {
    kept.wards.make_room(ward, heads[ward]);
    Int64s sent(size), received(size);
    sent[neighbour] = kept.mine.bytes.numel();
    received[ward] = kept.wards.bytes.numel();
    group.all_to_all(kept.wards.bytes, kept.mine.bytes, received, sent);
  }
  kept.version = mine.version();
}

// Lists this rank's shards for the other ranks: version, number of ranks, owner.
std::string KeptShards::told() const {
  auto shards = nlohmann::json::array();
  for (const Kept& kept : kept_) {
    if (kept.version < 0)
      continue;
    for (const Shard* shard : {&kept.mine, &kept.wards})
      if (shard->rank >= 0)
        shards.push_back({kept.version, kept.world_size, shard->rank});
  }
  return shards.dump();
}

// Returns null if this rank has no such shard.
const KeptShards::Shard* KeptShards::shard_of(int rank, int64_t version) const {
  for (const Kept& kept : kept_)
    for (const Shard* shard : {&kept.mine, &kept.wards})
      if (kept.version == version && shard->rank == rank)
        return shard;
  return nullptr;
}

// Returns this rank's shard. Every rank that lacks its own gets it, one rank after the other.
KeptShards::Shard KeptShards::received(const Ints& givers,
                                       int64_t version,
                                       ProcessGroup& group) const {
  const int rank = group.rank();
  Shard mine;
  for (const int owner : int_indices_of(givers)) {
    const int giver = givers[owner];
    if (giver == owner) {
      if (owner == rank)
        mine = *shard_of(owner, version);
      continue;
    }
    const Shard* const given = giver == rank ? shard_of(owner, version) : nullptr;
    std::string head = given != nullptr ? given->head : "";
    group.broadcast_bytes(head, giver);
    if (given != nullptr)
      group.send(given->bytes, owner);
    if (owner == rank) {
      mine.make_room(rank, head);
      group.recv(mine.bytes, giver);
    }
  }
  return mine;
}

// A version is whole if every rank's shard of it is somewhere. Versions are tried from the newest
// on.
std::optional<KeptState> KeptShards::recover(ProcessGroup& group) {
  const int size = group.size(), rank = group.rank();
  distance_of_ranks_ = 0;  // the ranks may be on other hosts now
  const auto shards = shards_told(group.all_gather_bytes(told(), "parts in memory"));
  ranks_then_ = ranks_of_newest(shards);
  const auto newest = newest_whole(shards, size);
  if (!newest) {
    kept_ = {};
    return std::nullopt;
  }
  Kept now{.version = newest->version,
           .world_size = size,
           .mine = received(newest->givers, newest->version, group)};
  // A shard whose owner was lost has one holder until the next version is kept. Shards of later
  // versions are dropped.
  for (const Kept& kept : kept_)
    if (kept.version == newest->version)
      now.wards = kept.wards;
  kept_ = {std::move(now), Kept()};
  KeptState state = views_by_head(kept_[0].mine.head, kept_[0].mine.bytes);
  state.rank = rank;
  return state;
}

}  // namespace muster
