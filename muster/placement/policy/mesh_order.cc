// Few devices are tried in every order; for more there is a search (mesh_search.h).
#include "muster/placement/policy/mesh_order.h"

#include <algorithm>
#include <utility>

#include "muster/placement/policy/mesh_search.h"
#include "muster/placement/policy/order_improver.h"

namespace muster {
namespace {

// Returns the quality of the links along each axis, from the last axis.
std::vector<RingQuality> quality_of(const Bandwidths& bandwidth,
                                    const std::vector<std::vector<Neighbours>>& axes,
                                    const Indices& order) {
  std::vector<RingQuality> all;
  for (const auto& pairs : axes) {
    RingQuality& axis = all.emplace_back();
    for (const auto& [a, b] : pairs)
      axis.add(bandwidth[order[a]][order[b]]);
  }
  return all;
}

// Tries every choice and order of the devices.
Indices exact_mesh_order(const Bandwidths& bandwidth, const Ints& sizes) {
  const auto axes = mesh_neighbours(sizes);
  Indices order = numbers_below(bandwidth.size());
  const size_t places = num_places(sizes);
  Indices best = order;
  auto best_quality = quality_of(bandwidth, axes, best);
  do {
    auto found = quality_of(bandwidth, axes, order);
    if (found > best_quality) {
      best = order;
      best_quality = std::move(found);
    }
    // The devices behind `places` are not used: their orders are all the same to us.
    std::reverse(order.begin() + places, order.end());
  } while (std::next_permutation(order.begin(), order.end()));
  best.resize(places);
  return best;
}

}  // namespace

// Eight devices have 40 320 orders, which takes milliseconds; nine would take ten times that.
Indices best_mesh_order(const Bandwidths& bandwidth, const Ints& sizes) {
  if (bandwidth.size() <= kMaxExactMesh)
    return exact_mesh_order(bandwidth, sizes);
  return search_mesh_order(bandwidth, sizes);
}

}  // namespace muster
