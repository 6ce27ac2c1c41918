// Improves the order of devices on a grid, of which a ring is the one with one axis, by small
// changes. For the searches beside it; pure numbers. A private header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "muster/base/lists.h"
#include "muster/placement/policy/ring.h"

namespace muster {

// Two places that are neighbours along an axis.
struct Neighbours {
  size_t a, b;
};

size_t num_places(const Ints& sizes);

// The order's devices, then the others.
Indices with_the_rest(Indices order, size_t num_devices);

// The neighbours along each axis, from the last: that is the order in which orders are compared.
std::vector<std::vector<Neighbours>> mesh_neighbours(const Ints& sizes);

class OrderImprover {
 public:
  // All devices; the first are the ones used, by their places.
  using Order = Indices;

  // `max_visits` bounds the time: how many links are looked at. Both references must outlive this
  // object.
  OrderImprover(const Bandwidths& bandwidth, const Ints& sizes, size_t max_visits);

  // Takes `start` as far as single changes go; remembers the best order that it sees.
  void improve(Order start);

  // Improves the best order after some of its devices were exchanged at random, again and again.
  // The same numbers give the same order everywhere.
  void shake();

  // Whether there are but fastest links: nothing is better.
  bool is_ideal() const;

  // The devices that are used.
  Order best() const;

 private:
  // How good the links of one axis are. That fewer of them are the slowest is a way to where none
  // is.
  struct AxisQuality {
    int64_t slowest = std::numeric_limits<int64_t>::max();
    int64_t faster = 0;  // less the number of links that are the slowest
    int64_t total = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): it takes <=> for one
    auto operator<=>(const AxisQuality&) const = default;
  };
  using Quality = std::vector<AxisQuality>;

  static bool is_better(const Quality& a, const Quality& b);
  bool is_over() const { return visits_ > max_visits_; }
  Quality quality_of(const Order& order);
  void remember();
  template <class Change, class Undo>
  bool keep_if_better(const Change& change, const Undo& undo);
  template <class Change>
  bool change_pieces(size_t least, const Change& change);
  bool exchange_devices();
  bool exchange_blocks();
  bool turn_pieces();
  bool move_devices();
  std::span<size_t> piece(size_t from, size_t to);  // of the order: [from, to)

  const Bandwidths& bandwidth_;
  const Ints& sizes_;
  const std::vector<std::vector<Neighbours>> axes_;
  const size_t places_;
  const size_t max_visits_;
  const int64_t fastest_;
  size_t visits_ = 0;
  Order order_;
  Quality quality_;
  Order best_;
  Quality best_quality_;
};

}  // namespace muster
