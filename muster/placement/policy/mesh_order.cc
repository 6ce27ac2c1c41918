#include "muster/placement/policy/mesh_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace muster {
namespace {

size_t product_of(const std::vector<int>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{1},
                         [](size_t product, int size) { return product * static_cast<size_t>(size); });
}

// Two places that are neighbours along an axis.
struct Neighbours {
  size_t a, b;
};

// Of each axis, from the last: that is the order in which orders are compared.
std::vector<std::vector<Neighbours>> neighbours_of(const std::vector<int>& sizes) {
  const size_t places = product_of(sizes);
  std::vector<std::vector<Neighbours>> axes;
  size_t stride = 1;
  for (size_t axis = sizes.size(); axis-- > 0;) {
    const auto size = static_cast<size_t>(sizes[axis]);
    auto& pairs = axes.emplace_back();
    for (size_t place = 0; place < places && size > 1; ++place) {
      const size_t along = place / stride % size;
      if (along + 1 < size) pairs.push_back({place, place + stride});
      if (along + 1 == size && size > 2) pairs.push_back({place, place - along * stride});  // closes the ring
    }
    stride *= size;
  }
  return axes;
}

class MeshSearch {
 public:
  MeshSearch(const Bandwidths& bandwidth, const std::vector<int>& sizes)
      : bandwidth_(bandwidth), axes_(neighbours_of(sizes)) {}

  std::vector<RingQuality> quality(const std::vector<size_t>& order) const {
    std::vector<RingQuality> all;
    for (const auto& pairs : axes_) {
      RingQuality& axis =
          all.emplace_back(RingQuality{.slowest = std::numeric_limits<int64_t>::max(), .total = 0});
      for (const auto& [a, b] : pairs) {
        const int64_t link = bandwidth_[order[a]][order[b]];
        axis.slowest = std::min(axis.slowest, link);
        axis.total += link;
      }
    }
    return all;
  }

  // Every choice and order of `places` out of the devices.
  std::vector<size_t> exact(size_t places) const {
    std::vector<size_t> order(bandwidth_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::vector<size_t> best = order;
    auto best_quality = quality(best);
    do {
      auto found = quality(order);
      if (found > best_quality) {
        best = order;
        best_quality = std::move(found);
      }
      // The devices behind `places` are not used: their orders are all the same to us.
      std::reverse(order.begin() + static_cast<std::ptrdiff_t>(places), order.end());
    } while (std::next_permutation(order.begin(), order.end()));
    best.resize(places);
    return best;
  }

  // Exchanges two devices, one of which is used, for as long as that improves the order.
  std::vector<size_t> improved(std::vector<size_t> order, size_t places) const {
    auto best = quality(order);
    for (bool better = true; better;) {
      better = false;
      for (size_t a = 0; a < places; ++a) {
        for (size_t b = a + 1; b < order.size(); ++b) {
          std::swap(order[a], order[b]);
          auto found = quality(order);
          if (found > best) {
            best = std::move(found);
            better = true;
          } else {
            std::swap(order[a], order[b]);
          }
        }
      }
    }
    return order;
  }

 private:
  const Bandwidths& bandwidth_;
  const std::vector<std::vector<Neighbours>> axes_;
};

}  // namespace

std::vector<RingQuality> mesh_quality(const Bandwidths& bandwidth, const std::vector<int>& sizes,
                                      const std::vector<size_t>& order) {
  auto quality = MeshSearch(bandwidth, sizes).quality(order);
  std::reverse(quality.begin(), quality.end());
  return quality;
}

std::vector<size_t> best_mesh_order(const Bandwidths& bandwidth, const std::vector<int>& sizes) {
  const size_t places = product_of(sizes);
  const MeshSearch search(bandwidth, sizes);
  if (bandwidth.size() <= kMaxExactMesh) return search.exact(places);
  std::vector<size_t> in_order(bandwidth.size());
  std::iota(in_order.begin(), in_order.end(), size_t{0});
  auto best = search.improved(in_order, places);
  auto other = search.improved(best_ring(bandwidth, bandwidth.size()), places);
  if (search.quality(other) > search.quality(best)) best = std::move(other);
  best.resize(places);
  return best;
}

}  // namespace muster
