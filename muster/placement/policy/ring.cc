// Few devices are solved exactly by dynamic programming over sets of them, first for the slowest
// link, then for the sum of those rings that reach it. For more devices there is a search
// (ring_search.cc).
#include "muster/placement/policy/ring.h"

#include <algorithm>
#include <bit>
#include <set>

#include "muster/base/indices_of.h"

namespace muster {
namespace {

// Sets of devices are bit masks. Every ring is thought to start at the lowest device of its set.
class ExactRing {
 public:
  ExactRing(const Bandwidths& bandwidth, int count)
      : bandwidth_(bandwidth), n_(bandwidth.size()), count_(count) {}

  Indices solve() {
    slowest_ = best_slowest();
    fill_totals();
    return first_of_best();
  }

 private:
  // A path through all of `set` that ends at `last`.
  struct State {
    uint32_t set = 0;
    size_t last = 0;
  };
  using States = std::vector<State>;

  static size_t start_of(uint32_t set) { return std::countr_zero(set); }
  static bool is_in(uint32_t set, size_t device) { return (set >> device & 1U) != 0; }

  // Returns the largest bandwidth that all links of some ring reach: by bisection, since a ring of
  // fast links is one of slower ones too.
  int64_t best_slowest() const {
    const Int64s values = link_bandwidths(bandwidth_);
    const auto fails = std::partition_point(
        values.begin() + 1, values.end(), [&](int64_t least) { return has_ring(least); });
    return *(fails - 1);
  }

  // Returns, of each device, the set of those it has a fast enough link to.
  std::vector<uint32_t> joined_by(int64_t least) const {
    std::vector<uint32_t> joined(n_);
    for (size_t a = 0; a < n_; ++a) {
      for (size_t b = 0; b < n_; ++b) {
        if (a != b && bandwidth_[a][b] >= least)
          joined[a] |= 1U << b;
      }
    }
    return joined;
  }

  // ends[set] holds the devices at which a path through all of the set can end.
  bool has_ring(int64_t least) const {
    const auto joined = joined_by(least);
    std::vector<uint32_t> ends(size_t{1} << n_);
    for (size_t i = 0; i < n_; ++i)
      ends[size_t{1} << i] = 1U << i;
    for (uint32_t set = 1; set < ends.size(); ++set) {
      const int size = std::popcount(set);
      if (size == count_ && (ends[set] & joined[start_of(set)]) != 0)
        return true;
      if (size < count_ && ends[set] != 0)
        extend_ends(ends, set, joined);
    }
    return false;
  }

  void extend_ends(std::vector<uint32_t>& ends,
                   uint32_t set,
                   const std::vector<uint32_t>& joined) const {
    for (size_t next = start_of(set) + 1; next < n_; ++next) {
      if (!is_in(set, next) && (ends[set] & joined[next]) != 0)
        ends[set | 1U << next] |= 1U << next;
    }
  }

  int64_t& total(uint32_t set, size_t last) { return totals_[set * n_ + last]; }

  // total(set, last) is the most that a path from the set's start through all of it to `last` adds
  // up to; -1 when there is none over links that are fast enough.
  void fill_totals() {
    totals_.assign((size_t{1} << n_) * n_, -1);
    for (size_t i = 0; i < n_; ++i)
      total(1U << i, i) = 0;
    for (uint32_t set = 1; set < (1U << n_); ++set) {
      if (std::popcount(set) >= count_)
        continue;
      for (size_t last = start_of(set); last < n_; ++last) {
        if (total(set, last) >= 0)
          extend({set, last});
      }
    }
  }

  void extend(const State& path) {
    const int64_t sum = total(path.set, path.last);
    for (size_t next = start_of(path.set) + 1; next < n_; ++next) {
      const int64_t link = bandwidth_[path.last][next];
      if (is_in(path.set, next) || link < slowest_)
        continue;
      int64_t& known = total(path.set | 1U << next, next);
      known = std::max(known, sum + link);
    }
  }

  // Returns what the ring adds up to that closes the path; -1 when the path cannot be closed.
  int64_t closed(const State& path) {
    const int64_t sum = total(path.set, path.last);
    const int64_t link = bandwidth_[path.last][start_of(path.set)];
    const bool can_close = sum >= 0 && link >= slowest_;
    return can_close ? sum + link : -1;
  }

  // Returns all paths that close to a ring with the greatest sum.
  States best_paths() {
    int64_t best = -1;
    States paths;
    for (uint32_t set = 1; set < (1U << n_); ++set) {
      if (std::popcount(set) != count_)
        continue;
      for (size_t last = start_of(set); last < n_; ++last) {
        const int64_t sum = closed({set, last});
        if (sum < 0 || sum < best)
          continue;
        if (sum > best)
          paths.clear();
        best = sum;
        paths.push_back({set, last});
      }
    }
    return paths;
  }

  // Rings are walked backwards from their last device, which is the same ring, all best ones at
  // once: at every step those stay that go on with the lowest device.
  Indices first_of_best() {
    States paths = best_paths();
    keep_lowest(paths, [](const State& path) { return start_of(path.set); });
    Indices ring = {start_of(paths[0].set)};
    for (int place = 1; place < count_; ++place) {
      keep_lowest(paths, [](const State& path) { return path.last; });
      ring.push_back(paths[0].last);
      paths = one_step_back(paths);
    }
    return ring;
  }

  template <class Key>
  static void keep_lowest(States& paths, const Key& key) {
    const size_t lowest = key(*std::ranges::min_element(paths, {}, key));
    std::erase_if(paths, [&](const State& path) { return key(path) != lowest; });
  }

  States one_step_back(const States& paths) {
    States before;
    for (const State& path : paths) {
      const uint32_t rest = path.set & ~(1U << path.last);
      for (size_t last = 0; last < n_; ++last) {
        if (!is_in(rest, last) || total(rest, last) < 0)
          continue;
        const int64_t link = bandwidth_[last][path.last];
        const bool is_way = total(rest, last) + link == total(path.set, path.last);
        if (link >= slowest_ && is_way)
          before.push_back({rest, last});
      }
    }
    return before;
  }

  const Bandwidths& bandwidth_;
  const size_t n_;
  const int count_;
  int64_t slowest_ = 0;
  Int64s totals_;
};

// Returns the quality of the links whose two devices are in one group.
RingQuality quality_within(const Bandwidths& bandwidth, const Indices& ring, size_t group) {
  RingQuality quality;
  for (size_t i = 1; i < ring.size(); ++i) {
    if (i % group != 0)
      quality.add(bandwidth[ring[i - 1]][ring[i]]);
  }
  return quality;
}

}  // namespace

// Links have no direction, so half of the matrix is enough.
Int64s link_bandwidths(const Bandwidths& bandwidth) {
  std::set<int64_t> values;
  for (const size_t a : indices_of(bandwidth))
    values.insert(bandwidth[a].begin(), bandwidth[a].begin() + a);
  return {values.begin(), values.end()};
}

int64_t fastest_link(const Bandwidths& bandwidth) {
  int64_t fastest = 0;
  for (const size_t a : indices_of(bandwidth)) {
    for (size_t b = 0; b < a; ++b)
      fastest = std::max(fastest, bandwidth[a][b]);
  }
  return fastest;
}

RingQuality ring_quality(const Bandwidths& bandwidth, const Indices& ring) {
  RingQuality quality;
  for (const size_t i : indices_of(ring))
    quality.add(bandwidth[ring[i]][ring[(i + 1) % ring.size()]]);
  return quality;
}

Indices turned_to_groups(const Bandwidths& bandwidth, Indices ring, size_t group) {
  Indices best = ring;
  for (size_t turn = 1; turn < group; ++turn) {
    std::ranges::rotate(ring, ring.begin() + 1);
    if (quality_within(bandwidth, ring, group) > quality_within(bandwidth, best, group))
      best = ring;
  }
  return best;
}

Indices best_ring(const Bandwidths& bandwidth, size_t count) {
  Indices ring = numbers_below(count);
  // Nothing is better than fastest links alone: so it is behind a switch that joins all with all.
  if (count < 2 || ring_quality(bandwidth, ring).slowest == fastest_link(bandwidth))
    return ring;
  if (bandwidth.size() <= kMaxExactRing)
    return ExactRing(bandwidth, static_cast<int>(count)).solve();
  return search_ring(bandwidth, count);
}

}  // namespace muster
