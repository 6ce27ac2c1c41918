// Links are taken kind by kind, the nearest first. GPUs that are all joined alike make one bar,
// other pairs a line each. Bars and lines then get lanes below the GPUs, and each GPU's lines their
// places at its foot.
#include "muster/placement/picture/links.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"

namespace muster {

namespace {

// In units of the picture.
constexpr int kLineLane = 13;
constexpr int kBarLane = 30;
constexpr int kBarHeight = 20;
constexpr int kMostPortStep = 12;
constexpr size_t kFewestBarred = 4;  // GPUs, or pairs of them, that a bar is drawn for

using Pair = std::pair<size_t, size_t>;  // positions in HostLayout::gpus, the left one first

struct LinkedPairs {  // all pairs that this link joins
  Link link;
  std::set<Pair> pairs;
};

// The nearest kind comes first, and of a kind the most links first. Unknown links are left out.
std::vector<LinkedPairs> pairs_by_link(const Host& host, const HostLayout& layout) {
  std::map<std::pair<LinkKind, int>, LinkedPairs> found;
  for (const size_t a : indices_of(layout.gpus)) {
    for (size_t b = a + 1; b < layout.gpus.size(); ++b) {
      const size_t i = layout.gpus[a].gpu;
      const size_t j = layout.gpus[b].gpu;
      const Link* const link = gpu_link(host, i, j);
      if (link == nullptr || is_one_of(link->kind, LinkKind::unknown, LinkKind::self))
        continue;
      LinkedPairs& alike = found[{link->kind, -link->count}];
      alike.link = *link;
      alike.pairs.insert({a, b});
    }
  }
  const auto lists = std::views::values(found);
  return {lists.begin(), lists.end()};
}

// Returns a set of GPUs, grown greedily from the leftmost pair, in which all pairs are in `pairs`.
Indices clique_of(const std::set<Pair>& pairs) {
  Indices members = {pairs.begin()->first, pairs.begin()->second};
  const size_t last = std::ranges::max(std::views::values(pairs));
  for (size_t candidate = members[1] + 1; candidate <= last; ++candidate) {
    const bool fits =
        all_of(members, [&](size_t member) { return pairs.contains({member, candidate}); });
    if (fits)
      members.push_back(candidate);
  }
  return members;
}

// Ports are in the middle of a GPU's box until they are chosen.
DrawnLink drawn_link(const Link& link, const Indices& members, const HostLayout& layout) {
  DrawnLink drawn{.link = link};
  drawn.ports = mapped(
      members, [&](size_t member) { return LinkPort{member, layout.gpus[member].box.middle()}; });
  return drawn;
}

// Removes all pairs of the members, in either order.
void erase_inside(std::set<Pair>& pairs, const Indices& members) {
  for (const size_t a : members) {
    for (const size_t b : members)
      pairs.erase({a, b});
  }
}

// Returns all GPUs that can be reached over `pairs` from the first of them, in order.
Indices component_of(const std::set<Pair>& pairs) {
  std::set<size_t> members = {pairs.begin()->first};
  for (size_t before = 0; before != members.size();) {
    before = members.size();
    for (const auto& [a, b] : pairs) {
      if (members.contains(a) || members.contains(b))
        members.insert({a, b});
    }
  }
  return {members.begin(), members.end()};
}

// Whether any two of the members are a pair.
bool joins_all(const std::set<Pair>& pairs, const Indices& members) {
  for (const size_t i : indices_of(members)) {
    for (size_t j = i + 1; j < members.size(); ++j) {
      if (!pairs.contains({members[i], members[j]}))
        return false;
    }
  }
  return true;
}

// Adds a bar for GPUs that are joined over host bridges wherever nothing nearer joins them: lines
// would be a tangle. `near` are the pairs that this link or a nearer one joins. Those of `same`
// that make no bar stay there.
void add_partial_bars(std::vector<DrawnLink>& links,
                      LinkedPairs& same,
                      const std::set<Pair>& near,
                      const HostLayout& layout) {
  std::set<Pair> rest;
  while (!same.pairs.empty()) {
    const Indices members = component_of(same.pairs);
    std::set<Pair> inside;
    std::ranges::copy_if(same.pairs, std::inserter(inside, inside.end()), [&](const Pair& pair) {
      return std::ranges::binary_search(members, pair.first);
    });
    erase_inside(same.pairs, members);
    if (inside.size() >= kFewestBarred && joins_all(near, members)) {
      links.push_back(drawn_link(same.link, members, layout));
      links.back().is_partial = !joins_all(inside, members);
    } else {
      rest.merge(inside);
    }
  }
  same.pairs = std::move(rest);
}

bool leads_over_host_bridges(LinkKind kind) {
  return is_one_of(kind, LinkKind::phb, LinkKind::node, LinkKind::sys);
}

// Sets of pairs that are large enough become bars, and the rest become lines.
std::vector<DrawnLink> find_links(const Host& host, const HostLayout& layout) {
  std::vector<DrawnLink> links;
  std::set<Pair> near;  // joined by this kind or a nearer one
  for (LinkedPairs& same : pairs_by_link(host, layout)) {
    near.insert(same.pairs.begin(), same.pairs.end());
    if (leads_over_host_bridges(same.link.kind))
      add_partial_bars(links, same, near, layout);
    while (!same.pairs.empty()) {
      Indices members = clique_of(same.pairs);
      if (members.size() < kFewestBarred)
        members.resize(2);
      erase_inside(same.pairs, members);
      links.push_back(drawn_link(same.link, members, layout));
    }
  }
  // Fast links nearest to the GPUs, then short ones: what matters is seen first, and lines nest.
  std::ranges::stable_sort(links, {}, [](const DrawnLink& drawn) {
    const int width = drawn.right() - drawn.left();
    return std::tuple(drawn.link.kind, !drawn.is_bar(), width, -drawn.link.count, drawn.left());
  });
  return links;
}

// A lane holds bars or lines, beside each other.
struct Lane {
  bool of_bars;
  std::vector<std::pair<int, int>> taken;  // the left and the right end of each

  bool has_room(const DrawnLink& drawn) const {
    return of_bars == drawn.is_bar() && none_of(taken, [&](const auto& other) {
             return drawn.left() < other.second && other.first < drawn.right();
           });
  }
};

// Gives every link the uppermost lane in which it meets no other. Returns where the lanes end.
int choose_lanes(std::vector<DrawnLink>& links, int top) {
  std::vector<Lane> lanes;
  for (DrawnLink& drawn : links) {
    drawn.lane = 0;
    while (drawn.lane < int_size(lanes) && !lanes[drawn.lane].has_room(drawn))
      ++drawn.lane;
    if (drawn.lane == int_size(lanes))
      lanes.push_back({.of_bars = drawn.is_bar(), .taken = {}});
    lanes[drawn.lane].taken.emplace_back(drawn.left(), drawn.right());
  }
  Ints tops;
  for (const Lane& lane : lanes) {
    tops.push_back(top);
    top += lane.of_bars ? kBarLane : kLineLane;
  }
  for (DrawnLink& drawn : links) {
    drawn.y = tops[drawn.lane];
    drawn.height = drawn.is_bar() ? kBarHeight : 0;
  }
  return top;
}

// Returns to which side a link goes on from one of its ports: 1 to the right, -1 to the left, 0 to
// both.
int side_of(const DrawnLink& drawn, const LinkPort& port) {
  if (&port == &drawn.ports.back())
    return -1;
  return &port == &drawn.ports.front() ? 1 : 0;
}

// Sets where each GPU's lines leave its box: those to the left at its left, the deepest of them
// nearest to the middle, so that no line of a GPU crosses another of its own.
void choose_ports(std::vector<DrawnLink>& links, const HostLayout& layout) {
  struct End {
    std::tuple<int, int> order;
    LinkPort* port;
  };
  std::map<size_t, std::vector<End>> ends;
  for (DrawnLink& drawn : links) {
    for (LinkPort& port : drawn.ports) {
      const int side = side_of(drawn, port);
      ends[port.gpu].push_back({{side, -side * drawn.lane}, &port});
    }
  }
  for (auto& [gpu, list] : ends) {
    std::ranges::stable_sort(list, {}, &End::order);
    const SvgBox& box = layout.gpus[gpu].box;
    const int count = int_size(list);
    const int step = std::min(kMostPortStep, box.width / (count + 1));
    int x = box.middle() - step * (count - 1) / 2;
    for (const End& end : list) {
      end.port->x = x;
      x += step;
    }
  }
}

}  // namespace

LinkDrawing route_links(const Host& host, const HostLayout& layout, int top) {
  auto links = find_links(host, layout);
  const int bottom = choose_lanes(links, top);
  choose_ports(links, layout);
  return {.drawn = std::move(links), .bottom = bottom};
}

}  // namespace muster
