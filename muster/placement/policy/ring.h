// The best ring through k of n devices: what a ring all-reduce or a pipeline wants. The ring's
// slowest link decides its speed, so that is made as fast as can be first, then the sum of all its
// links. Pure numbers; called by topology.cc, knows nothing of GPUs. A private header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "muster/base/lists.h"

namespace muster {

// bandwidth[a][b] == bandwidth[b][a] ≥ 0, in any unit; whole numbers, so that sums are exact and
// the same machine gives the same ring everywhere. The diagonal is not looked at.
using Bandwidths = std::vector<std::vector<int64_t>>;

struct RingQuality {
  int64_t slowest = INT64_MAX;
  int64_t total = 0;  // of all links, the closing one included; two devices have their link twice
  // NOLINTNEXTLINE(modernize-use-nullptr): it takes <=> for one
  auto operator<=>(const RingQuality&) const = default;

  void add(int64_t link) {
    slowest = std::min(slowest, link);
    total += link;
  }
};

// The quality of a ring of at least two.
RingQuality ring_quality(const Bandwidths& bandwidth, const Indices& ring);

// The same ring, begun so that the links within each `group` devices from there on are as fast as
// can be: first the slowest of them, then their sum. `group` divides the ring's size.
Indices turned_to_groups(const Bandwidths& bandwidth, Indices ring, size_t group);

// The bandwidths that there are between two devices, each once, from the lowest.
Int64s link_bandwidths(const Bandwidths& bandwidth);

// 0 where there are no links.
int64_t fastest_link(const Bandwidths& bandwidth);

inline constexpr size_t kMaxExactRing = 16;

// The best ring of `count` (1 ≤ count ≤ n) devices: exact for n ≤ kMaxExactRing, and there of
// several best ones the one that comes first in alphabetical order; for more a search that is never
// worse than 0, 1, 2 …. Source: Held and Karp's dynamic programme over subsets (1962), with a
// bottleneck before the sum.
Indices best_ring(const Bandwidths& bandwidth, size_t count);

// The part for n > kMaxExactRing: a ring of links as fast as can be found, and greedy rings from
// every device, all improved by exchanges.
Indices search_ring(const Bandwidths& bandwidth, size_t count);

}  // namespace muster
