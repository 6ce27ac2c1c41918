#include "muster/checkpoint/training/kept_shards.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/host_identity.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/packed_state.h"

namespace muster {

namespace {

// What a rank says that it has: whose parts, of which version.
struct ToldPart {
  int holder = 0;
  int64_t version = 0;
  int world_size = 0;
  int rank = 0;
};

std::vector<ToldPart> parts_told(const std::vector<std::string>& by_rank) {
  std::vector<ToldPart> parts;
  for (size_t holder = 0; holder < by_rank.size(); ++holder)
    for (const auto& part : nlohmann::json::parse(by_rank[holder]))
      parts.push_back({static_cast<int>(holder), part[0], part[1], part[2]});
  return parts;
}

int ranks_of_newest(const std::vector<ToldPart>& parts) {
  const auto newest =
      std::max_element(parts.begin(), parts.end(), [](const ToldPart& a, const ToldPart& b) {
        return a.version < b.version;
      });
  return newest == parts.end() ? 0 : newest->world_size;
}

// Who gives each rank's part of a version: the rank itself, where it has it. Empty: one is nowhere.
std::vector<int> givers_of(const std::vector<ToldPart>& parts, int64_t version, int size) {
  std::vector<int> givers(static_cast<size_t>(size), -1);
  for (const ToldPart& part : parts) {
    if (part.version != version || part.world_size != size || part.rank >= size)
      continue;
    int& giver = givers[static_cast<size_t>(part.rank)];
    if (giver < 0 || part.holder == part.rank)
      giver = part.holder;
  }
  const bool is_whole =
      std::all_of(givers.begin(), givers.end(), [](int giver) { return giver >= 0; });
  return is_whole ? givers : std::vector<int>();
}

}  // namespace

int neighbour_distance(const std::vector<std::string>& hosts) {
  const size_t size = hosts.size();
  for (size_t distance = 1; distance < size; ++distance) {
    size_t rank = 0;
    while (rank < size && hosts[rank] != hosts[(rank + distance) % size])
      ++rank;
    if (rank == size)
      return static_cast<int>(distance);
  }
  return size > 1 ? 1 : 0;
}

DividedStates& DividedStates::of(const std::string& folder, int rank) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<std::string, int>, DividedStates>;  // never destroyed
  const std::lock_guard lock(mutex);
  return all[{folder, get_env("RANK") ? 0 : rank}];
}

void DividedStates::Part::make_room(int of, const std::string& its_head) {
  const int64_t size = packed_bytes(its_head);
  rank = of;
  head = its_head;
  if (!bytes.defined() || bytes.numel() != size)
    bytes = at::empty({size}, at::kByte);
}

// Who has come to say what it keeps now has kept the version before, so that one may be written
// over which came before that.
void DividedStates::keep(const KeptState& mine, ProcessGroup& group) {
  const int size = group.size(), rank = group.rank();
  if (distance_of_ranks_ != size) {
    distance_ = neighbour_distance(group.all_gather_bytes(host_identity(), "hosts"));
    distance_of_ranks_ = size;
  }
  const std::string head = head_of(mine);
  const auto heads = group.all_gather_bytes(head, "parts in memory");
  Kept& kept = kept_[0].version < kept_[1].version ? kept_[0] : kept_[1];
  kept.version = -1;
  kept.world_size = size;
  kept.mine.make_room(rank, head);
  const std::vector<at::Tensor> from = packed_tensors(mine.image);
  const std::vector<at::Tensor> to = packed_tensors(views_by_head(head, kept.mine.bytes).image);
  for (size_t i = 0; i < from.size(); ++i)
    to[i].copy_(from[i]);
  const int neighbour = (rank + distance_) % size, ward = (rank - distance_ + size) % size;
  if (neighbour != rank) {
    kept.wards.make_room(ward, heads[static_cast<size_t>(ward)]);
    std::vector<int64_t> sent(static_cast<size_t>(size)), received(static_cast<size_t>(size));
    sent[static_cast<size_t>(neighbour)] = kept.mine.bytes.numel();
    received[static_cast<size_t>(ward)] = kept.wards.bytes.numel();
    group.all_to_all(kept.wards.bytes, kept.mine.bytes, received, sent);
  }
  kept.version = mine.version();
}

std::string DividedStates::told() const {
  auto parts = nlohmann::json::array();
  for (const Kept& kept : kept_) {
    if (kept.version < 0)
      continue;
    for (const Part* part : {&kept.mine, &kept.wards})
      if (part->rank >= 0)
        parts.push_back({kept.version, kept.world_size, part->rank});
  }
  return parts.dump();
}

const DividedStates::Part* DividedStates::part_of(int rank, int64_t version) const {
  for (const Kept& kept : kept_) {
    if (kept.version != version)
      continue;
    if (kept.mine.rank == rank)
      return &kept.mine;
    if (kept.wards.rank == rank)
      return &kept.wards;
  }
  return nullptr;
}

std::optional<KeptState> DividedStates::recover(ProcessGroup& group) {
  const int size = group.size(), rank = group.rank();
  distance_of_ranks_ = 0;  // hosts may be others
  const auto parts = parts_told(group.all_gather_bytes(told(), "parts in memory"));
  ranks_then_ = ranks_of_newest(parts);
  std::set<int64_t> versions;
  for (const ToldPart& part : parts)
    versions.insert(part.version);
  std::vector<int> givers;
  int64_t version = -1;
  while (givers.empty() && !versions.empty()) {
    version = *versions.rbegin();
    versions.erase(version);
    givers = givers_of(parts, version, size);
  }
  if (givers.empty()) {
    kept_ = {};
    return std::nullopt;
  }
  Kept mine{.version = version, .world_size = size, .mine = {}, .wards = {}};
  for (int owner = 0; owner < size; ++owner) {
    const int giver = givers[static_cast<size_t>(owner)];
    const Part* const part = giver == rank ? part_of(owner, version) : nullptr;
    if (giver == owner) {
      if (owner == rank)
        mine.mine = *part;
      continue;
    }
    std::string head = part != nullptr ? part->head : std::string();
    group.broadcast_bytes(head, giver);
    if (part != nullptr)
      group.send(part->bytes, owner);
    if (owner != rank)
      continue;
    mine.mine.make_room(rank, head);
    group.recv(mine.mine.bytes, giver);
  }
  // A part whose owner was lost has one holder until the next version is kept; those of later
  // versions are no more.
  for (const Kept& kept : kept_)
    if (kept.version == version)
      mine.wards = kept.wards;
  kept_ = {std::move(mine), Kept()};
  KeptState state = views_by_head(kept_[0].mine.head, kept_[0].mine.bytes);
  state.rank = rank;
  return state;
}

}  // namespace muster
