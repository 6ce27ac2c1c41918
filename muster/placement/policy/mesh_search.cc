// Devices are packed into rows for the last axis, which fast links should join all with all; then
// rows are put in order as if each were one device, and so on axis by axis. How fast "fast" is, is
// tried from the fastest links on. Bounds on visits and tries keep the time short; no clock is
// read, so that the same machine gives the same order everywhere.
#include "muster/placement/policy/mesh_search.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/device/numbers.h"
#include "muster/placement/policy/mesh_order.h"
#include "muster/placement/policy/order_improver.h"

namespace muster {
namespace {

using Order = OrderImprover::Order;

constexpr size_t kMaxThresholds = 16;
constexpr size_t kThoroughSize = 64;          // of more devices, fewer thresholds
constexpr size_t kMaxCounted = 256;           // devices whose neighbours in common are counted
constexpr size_t kMaxMeshVisits = 8'000'000;  // some 20 ms
constexpr size_t kMaxVisitsOfRows = kMaxMeshVisits / 40;
constexpr int kMaxTries = 10'000;  // to find a clique around a device
constexpr int kMaxTriesOfAll = 200'000;

// Packs rows for the last axis: cliques of links of at least `least`, as far as there are enough,
// and then rows that come near to one.
class RowPacker {
 public:
  RowPacker(const Bandwidths& bandwidth, int64_t least)
      : bandwidth_(bandwidth), least_(least), is_free_(bandwidth.size(), true) {}

  std::vector<Order> pack(size_t count, size_t size) {
    auto rows = cliques(count, size);
    while (rows.size() < count) {
      Order& row = rows.emplace_back();
      take(row, *seed(is_free_, size));
      while (row.size() < size)
        take(row, next(row));
    }
    return rows;
  }

 private:
  // No device has a link with itself.
  bool is_fast(size_t a, size_t b) const { return a != b && bandwidth_[a][b] >= least_; }

  void take(Order& row, size_t device) {
    is_free_[device] = false;
    row.push_back(device);
  }

  // Returns at most `count` cliques. Tries that one device leaves over are there for the next.
  std::vector<Order> cliques(size_t count, size_t size) {
    std::vector<Order> rows;
    std::vector<bool> may_begin = is_free_;
    while (rows.size() < count) {
      const std::optional<size_t> device = seed(may_begin, size);
      if (!device)
        break;
      may_begin[*device] = false;
      tries_ = std::min(kMaxTries, tries_of_all_);
      tries_of_all_ -= tries_;
      Order clique = {*device};
      const bool found = complete(clique, fast_neighbours(*device), size);
      tries_of_all_ += std::max(tries_, 0);
      if (!found)
        continue;
      for (const size_t member : clique)
        is_free_[member] = may_begin[member] = false;
      rows.push_back(std::move(clique));
    }
    return rows;
  }

  Order fast_neighbours(size_t device) const {
    return filtered_indices(
        bandwidth_.size(), [&](size_t other) { return is_free_[other] && is_fast(device, other); });
  }

  // Whether `clique` could be made one of `size` with some of `candidates`, each of which is joined
  // with all of it. As deep as a row is long.
  bool complete(Order& clique, const Order& candidates, size_t size) {  // NOLINT(misc-no-recursion)
    if (clique.size() == size)
      return true;
    for (size_t i = 0; i < candidates.size() && candidates.size() - i >= size - clique.size();
         ++i) {
      if (tries_-- <= 0)
        return false;
      const Order joined = filtered(std::span(candidates).subspan(i + 1),
                                    [&](size_t other) { return is_fast(candidates[i], other); });
      clique.push_back(candidates[i]);
      if (complete(clique, joined, size))
        return true;
      clique.pop_back();
    }
    return false;
  }

  // Returns, of the devices that have enough fast links for a row, the one with the fewest: others
  // have more choice.
  std::optional<size_t> seed(const std::vector<bool>& may_begin, size_t size) const {
    const size_t enough = std::min<size_t>(size - 1, 2);
    std::optional<size_t> best;
    std::tuple<bool, int> best_key;
    for (size_t device = 0; device < bandwidth_.size(); ++device) {
      if (!may_begin[device])
        continue;
      const int links = int_size(fast_neighbours(device));
      const bool has_enough = std::cmp_greater_equal(links, enough);
      const std::tuple key{has_enough, has_enough ? -links : links};
      if (best && key <= best_key)
        continue;
      best = device;
      best_key = key;
    }
    return best;
  }

  // Returns the device with most fast links to the row; of equals the one with most neighbours in
  // common with it, then with the greatest bandwidth to it.
  size_t next(const Order& row) const {
    size_t best = bandwidth_.size();
    std::tuple<int, int, int64_t> best_key;
    for (size_t device = 0; device < bandwidth_.size(); ++device) {
      if (!is_free_[device])
        continue;
      int fast = 0;
      int common = 0;
      int64_t sum = 0;
      for (const size_t member : row) {
        fast += is_fast(device, member) ? 1 : 0;
        common += common_neighbours(device, member);
        sum += bandwidth_[device][member];
      }
      const std::tuple key{fast, common, sum};
      if (best < bandwidth_.size() && key <= best_key)
        continue;
      best = device;
      best_key = key;
    }
    return best;
  }

  // Neighbours are not counted where there are too many devices to do so for each.
  int common_neighbours(size_t a, size_t b) const {
    if (bandwidth_.size() > kMaxCounted)
      return 0;
    int count = 0;
    for (size_t other = 0; other < bandwidth_.size(); ++other) {
      if (is_free_[other] && is_fast(a, other) && is_fast(b, other))
        ++count;
    }
    return count;
  }

  const Bandwidths& bandwidth_;
  const int64_t least_;
  std::vector<bool> is_free_;
  int tries_ = 0;  // that are left, around one device and in all
  int tries_of_all_ = kMaxTriesOfAll;
};

// Returns the bandwidths of some devices with each other.
Bandwidths among(const Bandwidths& bandwidth, const Order& devices) {
  return mapped(devices, [&](size_t a) {
    return mapped(devices, [&](size_t b) { return bandwidth[a][b]; });
  });
}

// Returns what all links between each two rows add up to.
Bandwidths between(const Bandwidths& bandwidth, const std::vector<Order>& rows) {
  Bandwidths sums(rows.size(), Int64s(rows.size()));
  for (const size_t a : indices_of(rows)) {
    for (const size_t b : indices_of(rows)) {
      for (const size_t one : rows[a]) {
        for (const size_t other : rows[b])
          sums[a][b] += bandwidth[one][other];
      }
    }
  }
  return sums;
}

// Returns the fastest bandwidths that there are; fewer of them where there are many devices.
Int64s thresholds_of(const Bandwidths& bandwidth) {
  Int64s thresholds = link_bandwidths(bandwidth);
  std::ranges::reverse(thresholds);
  const size_t most = kMaxThresholds * kThoroughSize / std::max(kThoroughSize, bandwidth.size());
  thresholds.resize(std::min(thresholds.size(), std::max<size_t>(most, 1)));
  return thresholds;
}

Order order_of_rows(const Bandwidths& bandwidth, const Ints& sizes);

// Puts each row in a good order, and the rows in a good order for the axes before; then come the
// devices that are left.
Order arranged(const Bandwidths& bandwidth,
               const Ints& sizes,  // NOLINT(misc-no-recursion)
               const std::vector<Order>& rows) {
  const Ints before(sizes.begin(), sizes.end() - 1);
  const Bandwidths of_rows = between(bandwidth, rows);
  Order order;
  for (const size_t row : order_of_rows(of_rows, before)) {
    const Order ring = best_ring(among(bandwidth, rows[row]), rows[row].size());
    append_mapped(order, ring, [&](size_t place) { return rows[row][place]; });
  }
  return with_the_rest(std::move(order), bandwidth.size());
}

// Improves several starts; `improver` remembers the best.
void try_starts(const Bandwidths& bandwidth,
                const Ints& sizes,  // NOLINT(misc-no-recursion)
                OrderImprover& improver) {
  const size_t size = sizes.back();
  improver.improve(numbers_below(bandwidth.size()));
  for (const int64_t least : thresholds_of(bandwidth)) {
    if (improver.is_ideal())
      return;
    const auto rows = RowPacker(bandwidth, least).pack(num_places(sizes) / size, size);
    improver.improve(arranged(bandwidth, sizes, rows));
  }
}

// Orders rows as if they were devices: quicker, and less thorough. There is an axis less each time.
Order order_of_rows(const Bandwidths& bandwidth,
                    const Ints& sizes) {  // NOLINT(misc-no-recursion)
  if (bandwidth.size() <= kMaxExactMesh)
    return best_mesh_order(bandwidth, sizes);
  if (sizes.size() == 1)
    return best_ring(bandwidth, bandwidth.size());
  OrderImprover improver(bandwidth, sizes, kMaxVisitsOfRows);
  try_starts(bandwidth, sizes, improver);
  return improver.best();
}

}  // namespace

Indices search_mesh_order(const Bandwidths& bandwidth, const Ints& sizes) {
  OrderImprover improver(bandwidth, sizes, kMaxMeshVisits);
  try_starts(bandwidth, sizes, improver);
  improver.shake();
  return improver.best();
}

}  // namespace muster
