// Rings through more devices than the exact programme can hold.
#include <algorithm>
#include <numeric>

#include "muster/placement/policy/ring.h"

namespace muster {
namespace {

constexpr size_t kNumImproved = 4;  // rings that are improved
constexpr int kMaxRounds = 50;

// From `start` always on to the device with the fastest link, of equals the lowest.
std::vector<size_t> greedy_ring(const Bandwidths& bandwidth, size_t start, size_t count) {
  std::vector<size_t> ring = {start};
  std::vector<bool> taken(bandwidth.size());
  taken[start] = true;
  while (ring.size() < count) {
    size_t best = bandwidth.size();
    for (size_t next = 0; next < bandwidth.size(); ++next) {
      if (taken[next]) continue;
      if (best == bandwidth.size() || bandwidth[ring.back()][next] > bandwidth[ring.back()][best])
        best = next;
    }
    taken[best] = true;
    ring.push_back(best);
  }
  return ring;
}

// Takes `changed` over when it is better.
bool improve_to(const Bandwidths& bandwidth, std::vector<size_t>& ring, RingQuality& quality,
                const std::vector<size_t>& changed) {
  const RingQuality got = ring_quality(bandwidth, changed);
  if (got <= quality) return false;
  ring = changed;
  quality = got;
  return true;
}

// Turns each piece of the ring round, and exchanges each two of its devices, where that helps.
bool improve_order(const Bandwidths& bandwidth, std::vector<size_t>& ring, RingQuality& quality) {
  bool better = false;
  for (size_t from = 0; from + 1 < ring.size(); ++from) {
    for (size_t to = from + 1; to < ring.size(); ++to) {
      std::vector<size_t> changed = ring;
      std::reverse(changed.begin() + static_cast<std::ptrdiff_t>(from),
                   changed.begin() + static_cast<std::ptrdiff_t>(to) + 1);
      better |= improve_to(bandwidth, ring, quality, changed);
      changed = ring;
      std::swap(changed[from], changed[to]);
      better |= improve_to(bandwidth, ring, quality, changed);
    }
  }
  return better;
}

// Exchanges devices of the ring for others, where that helps.
bool improve_choice(const Bandwidths& bandwidth, std::vector<size_t>& ring, RingQuality& quality) {
  bool better = false;
  for (size_t at = 0; at < ring.size(); ++at) {
    for (size_t other = 0; other < bandwidth.size(); ++other) {
      if (std::find(ring.begin(), ring.end(), other) != ring.end()) continue;
      std::vector<size_t> changed = ring;
      changed[at] = other;
      better |= improve_to(bandwidth, ring, quality, changed);
    }
  }
  return better;
}

}  // namespace

std::vector<size_t> search_ring(const Bandwidths& bandwidth, size_t count) {
  std::vector<std::vector<size_t>> rings(1, std::vector<size_t>(count));
  std::iota(rings[0].begin(), rings[0].end(), 0);
  for (size_t start = 0; start < bandwidth.size(); ++start) {
    rings.push_back(greedy_ring(bandwidth, start, count));
  }
  const auto better = [&](const auto& a, const auto& b) {
    return ring_quality(bandwidth, a) > ring_quality(bandwidth, b);
  };
  std::stable_sort(rings.begin(), rings.end(), better);
  rings.resize(std::min(rings.size(), kNumImproved));
  for (std::vector<size_t>& ring : rings) {
    RingQuality quality = ring_quality(bandwidth, ring);
    bool changed = true;
    for (int round = 0; changed && round < kMaxRounds; ++round) {
      changed = improve_order(bandwidth, ring, quality);
      changed |= improve_choice(bandwidth, ring, quality);
    }
  }
  return *std::min_element(rings.begin(), rings.end(), better);
}

}  // namespace muster
