// Every change is made, measured, and taken back unless it helps. That fewer links are the slowest
// counts as better too, since such changes lead to orders without any.
#include "muster/placement/policy/order_improver.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

constexpr int kMaxShakes = 1000;

}  // namespace

size_t num_places(const Ints& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{1}, std::multiplies<size_t>());
}

Indices with_the_rest(Indices order, size_t num_devices) {
  std::vector<bool> is_used(num_devices);
  for (const size_t device : order)
    is_used[device] = true;
  append_all(order, filtered_indices(num_devices, [&](size_t device) { return !is_used[device]; }));
  return order;
}

std::vector<std::vector<Neighbours>> mesh_neighbours(const Ints& sizes) {
  const size_t places = num_places(sizes);
  std::vector<std::vector<Neighbours>> axes;
  size_t stride = 1;
  for (size_t axis = sizes.size(); axis-- > 0;) {
    const size_t size = sizes[axis];
    auto& pairs = axes.emplace_back();
    for (size_t place = 0; place < places; ++place) {
      const size_t along = place / stride % size;
      if (along + 1 < size)
        pairs.push_back({place, place + stride});
      else if (size > 2)
        pairs.push_back({place, place - along * stride});  // closes the ring
    }
    stride *= size;
  }
  return axes;
}

OrderImprover::OrderImprover(const Bandwidths& bandwidth, const Ints& sizes, size_t max_visits)
    : bandwidth_(bandwidth),
      sizes_(sizes),
      axes_(mesh_neighbours(sizes)),
      places_(num_places(sizes)),
      max_visits_(max_visits),
      fastest_(fastest_link(bandwidth)) {}

// Small changes are tried in turn until none of them helps, or the visits are used up.
void OrderImprover::improve(Order start) {
  order_ = std::move(start);
  quality_ = quality_of(order_);
  remember();
  for (bool better = true; better && !is_over();) {
    better = exchange_devices();
    better |= exchange_blocks();
    better |= turn_pieces();
    better |= move_devices();
  }
}

// A local best is left by exchanging a few devices at random, and improving again.
void OrderImprover::shake() {
  std::mt19937 random(1);
  for (int attempt = 0; attempt < kMaxShakes && !is_over() && !is_ideal(); ++attempt) {
    Order order = best_;
    const size_t exchanges = 2 + random() % std::max<size_t>(4, places_ / 2);
    for (size_t i = 0; i < exchanges; ++i)
      std::swap(order[random() % places_], order[random() % order.size()]);
    improve(std::move(order));
  }
}

// An order whose slowest links are as fast as any link cannot be improved.
bool OrderImprover::is_ideal() const {
  return all_of(best_quality_, [&](const AxisQuality& axis) { return axis.slowest >= fastest_; });
}

OrderImprover::Order OrderImprover::best() const {
  Order used = best_;
  used.resize(places_);
  return used;
}

// Compares as ring.h and mesh_order.h do: without `faster`.
bool OrderImprover::is_better(const Quality& a, const Quality& b) {
  for (const size_t axis : indices_of(a)) {
    if (a[axis].slowest != b[axis].slowest)
      return a[axis].slowest > b[axis].slowest;
    if (a[axis].total != b[axis].total)
      return a[axis].total > b[axis].total;
  }
  return false;
}

// Each slowest link takes one from `faster`, which starts anew where a slower one is found.
OrderImprover::Quality OrderImprover::quality_of(const Order& order) {
  Quality all(axes_.size());
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    AxisQuality& quality = all[axis];
    for (const auto& [a, b] : axes_[axis]) {
      const int64_t link = bandwidth_[order[a]][order[b]];
      quality.total += link;
      if (link < quality.slowest)
        quality.faster = 0;
      quality.slowest = std::min(quality.slowest, link);
      if (link == quality.slowest)
        --quality.faster;
    }
    visits_ += axes_[axis].size();
  }
  return all;
}

// The best order is compared without `faster`, so it may stay while changes go on.
void OrderImprover::remember() {
  if (!best_.empty() && !is_better(quality_, best_quality_))
    return;
  best_ = order_;
  best_quality_ = quality_;
}

// Keeps what `change` made of the order if it is better; else `undo` takes it back.
template <class Change, class Undo>
bool OrderImprover::keep_if_better(const Change& change, const Undo& undo) {
  change();
  Quality found = quality_of(order_);
  if (found <= quality_) {
    undo();
    return false;
  }
  quality_ = std::move(found);
  remember();
  return true;
}

// The second device may be one that is not used, so that the choice of devices changes too.
bool OrderImprover::exchange_devices() {
  bool better = false;
  for (size_t a = 0; a < places_ && !is_over(); ++a) {
    for (size_t b = a + 1; b < order_.size(); ++b) {
      const auto exchange = [&] {
        std::swap(order_[a], order_[b]);
      };
      better |= keep_if_better(exchange, exchange);
    }
  }
  return better;
}

// Exchanges whole rows along the last axis, planes along the last two, and so on.
bool OrderImprover::exchange_blocks() {
  bool better = false;
  size_t size = 1;
  for (size_t axis = sizes_.size(); axis-- > 1;) {
    size *= sizes_[axis];
    for (size_t a = 0; a < places_ && !is_over(); a += size) {
      for (size_t b = a + size; b < places_; b += size) {
        const auto exchange = [&] {
          std::ranges::swap_ranges(piece(a, a + size), piece(b, b + size));
        };
        better |= keep_if_better(exchange, exchange);
      }
    }
  }
  return better;
}

// Calls `change` with the pieces of each row along the last axis that have `least` devices or more.
template <class Change>
bool OrderImprover::change_pieces(size_t least, const Change& change) {
  bool better = false;
  const size_t size = sizes_.back();
  for (size_t row = 0; row < places_; row += size) {
    for (size_t from = row; from < row + size && !is_over(); ++from) {
      for (size_t to = from + least; to <= row + size; ++to)
        better |= change(piece(from, to));
    }
  }
  return better;
}

// Turns pieces of a row the other way round.
bool OrderImprover::turn_pieces() {
  return change_pieces(2, [&](std::span<size_t> turned) {
    const auto turn = [&] {
      std::ranges::reverse(turned);
    };
    return keep_if_better(turn, turn);
  });
}

// Moves a device to another place of its row; those between move up.
bool OrderImprover::move_devices() {
  return change_pieces(3, [&](std::span<size_t> moved) {
    const auto forward = [&] {
      std::ranges::rotate(moved, moved.begin() + 1);
    };
    const auto back = [&] {
      std::ranges::rotate(moved, moved.end() - 1);
    };
    const bool better = keep_if_better(forward, back);
    return keep_if_better(back, forward) || better;
  });
}

std::span<size_t> OrderImprover::piece(size_t from, size_t to) {
  return std::span(order_).subspan(from, to - from);
}

}  // namespace muster
