// Rings through more devices than the exact programme can hold. Starts are found in three ways (in
// order, by rotations of a path over fast links, greedily), and each is improved by small changes.
// Randomness has a fixed seed, so that the same machine gives the same ring everywhere.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/placement/policy/order_improver.h"
#include "muster/placement/policy/ring.h"

namespace muster {
namespace {

constexpr size_t kMaxRingVisits = 8'000'000;  // links that are looked at: some 20 ms
constexpr int kMaxAttempts = 20;              // for each bandwidth
constexpr size_t kStepsPerDevice = 60;

// Looks for a ring over links of at least `least`. Source: L. Pósa's rotations of a path (1976),
// which goes on to the device with the fewest ways on.
class PathRotation {
 public:
  PathRotation(const Bandwidths& bandwidth, size_t count, int64_t least)
      : count_(count), random_(1) {
    neighbours_.resize(bandwidth.size());
    for (const size_t a : indices_of(bandwidth)) {
      for (const size_t b : indices_of(bandwidth)) {
        if (a != b && bandwidth[a][b] >= least)
          neighbours_[a].push_back(b);
      }
    }
  }

  std::optional<Indices> find() {
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      begin();
      for (size_t step = 0; step < kStepsPerDevice * neighbours_.size(); ++step) {
        if (path_.size() == count_ && is_closed())
          return path_;
        if (path_.size() == count_ && any(8) == 0)
          drop_first();
        if (!extend() && !rotate())
          break;
      }
    }
    return std::nullopt;
  }

 private:
  size_t any(size_t count) { return random_() % count; }

  void begin() {
    in_path_.assign(neighbours_.size(), false);
    path_ = {any(neighbours_.size())};
    in_path_[path_[0]] = true;
  }

  bool is_closed() const {
    const auto& last = neighbours_[path_.back()];
    return contains(last, path_[0]);
  }

  std::ptrdiff_t ways_on(size_t device) const {
    return std::ranges::count_if(neighbours_[device], [&](size_t next) { return !in_path_[next]; });
  }

  // Goes on to the neighbour that has the fewest ways on itself; of equals to any. False when there
  // is none.
  bool extend() {
    if (path_.size() == count_)
      return false;
    std::optional<size_t> best;
    std::ptrdiff_t fewest = 0;
    for (const size_t next : neighbours_[path_.back()]) {
      if (in_path_[next])
        continue;
      const std::ptrdiff_t ways = ways_on(next);
      const bool tie = best && ways == fewest && any(2) == 0;
      if (best && !tie && ways >= fewest)
        continue;
      best = next;
      fewest = ways;
    }
    if (!best)
      return false;
    path_.push_back(*best);
    in_path_[*best] = true;
    return true;
  }

  // Makes room for another device.
  void drop_first() {
    in_path_[path_[0]] = false;
    path_.erase(path_.begin());
  }

  // Turns the piece behind a neighbour of the last device the other way round: another device is
  // the last then. Now and then the whole path is turned, so that it grows at both ends.
  bool rotate() {
    if (any(4) == 0) {
      std::reverse(path_.begin(), path_.end());
      return true;
    }
    const auto& last = neighbours_[path_.back()];
    if (last.empty())
      return false;
    const auto pivot = std::ranges::find(path_, last[any(last.size())]);
    if (pivot != path_.end())
      std::reverse(pivot + 1, path_.end());
    return true;
  }

  const size_t count_;
  std::mt19937 random_;  // the same machine gives the same ring everywhere
  std::vector<Indices> neighbours_;
  Indices path_;
  std::vector<bool> in_path_;
};

// Returns the ring whose slowest link is as fast as rotations find. The search is by bisection: a
// ring of fast links is one of slower links too.
std::optional<Indices> ring_of_fast_links(const Bandwidths& bandwidth, size_t count) {
  const Int64s sorted = link_bandwidths(bandwidth);
  std::optional<Indices> best;
  size_t low = 0;
  size_t high = sorted.size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    auto found = PathRotation(bandwidth, count, sorted[middle]).find();
    if (found) {
      best = std::move(found);
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return best;
}

// Goes from `start` always on to the device with the fastest link, of equals the lowest.
Indices greedy_order(const Bandwidths& bandwidth, size_t start) {
  Indices order = {start};
  Indices left = numbers_below(bandwidth.size());
  std::erase(left, start);
  while (!left.empty()) {
    const Int64s& links = bandwidth[order.back()];
    const auto fastest =
        std::ranges::max_element(left, {}, [&](size_t next) { return links[next]; });
    order.push_back(*fastest);
    left.erase(fastest);
  }
  return order;
}

}  // namespace

Indices search_ring(const Bandwidths& bandwidth, size_t count) {
  const Ints sizes = {static_cast<int>(count)};
  OrderImprover improver(bandwidth, sizes, kMaxRingVisits);
  improver.improve(numbers_below(bandwidth.size()));
  if (const auto ring = ring_of_fast_links(bandwidth, count))
    improver.improve(with_the_rest(*ring, bandwidth.size()));
  for (size_t start = 0; start < bandwidth.size() && !improver.is_ideal(); ++start)
    improver.improve(greedy_order(bandwidth, start));
  improver.shake();
  return improver.best();
}

}  // namespace muster
