// Links are taken kind by kind, the nearest first. GPUs that are all joined alike make one bar,
// other pairs a line each. Bars and lines then get lanes below the GPUs, and each GPU's lines their
// places at its foot.
#include "muster/placement/picture/links.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/device/numbers.h"

namespace muster {

namespace {

constexpr int kLane = 13;
constexpr int kBarLane = 30;
constexpr int kBarHeight = 20;
constexpr int kMostPortStep = 12;
constexpr size_t kFewestBarred = 4;  // GPUs, or links, that a bar is drawn for

using Pair = std::pair<size_t, size_t>;  // positions in HostLayout::gpus, the left one first

struct Pairs {  // all that are joined by the same link
  Link link;
  std::set<Pair> pairs;
};

// Returns the nearest kind first, and of a kind the most links first.
std::vector<Pairs> pairs_by_link(const Host& host, const HostLayout& layout) {
  std::map<std::pair<LinkKind, int>, Pairs> found;
  for (size_t a = 0; a < layout.gpus.size(); ++a) {
    for (size_t b = a + 1; b < layout.gpus.size(); ++b) {
      const size_t i = layout.gpus[a].gpu;
      const size_t j = layout.gpus[b].gpu;
      if (i >= host.gpu_links.size() || j >= host.gpu_links[i].size())
        continue;
      const Link& link = host.gpu_links[i][j];
      if (is_one_of(link.kind, LinkKind::unknown, LinkKind::self))
        continue;
      Pairs& same = found[{link.kind, -link.count}];
      same.link = link;
      same.pairs.insert({a, b});
    }
  }
  const auto lists = std::views::values(found);
  return {lists.begin(), lists.end()};
}

// Returns a set of GPUs, grown greedily from the leftmost pair, in which all pairs are in `pairs`.
std::vector<size_t> clique_of(const std::set<Pair>& pairs) {
  std::vector<size_t> members = {pairs.begin()->first, pairs.begin()->second};
  size_t last = 0;
  for (const auto& [a, b] : pairs)
    last = std::max(last, b);
  for (size_t candidate = members[1] + 1; candidate <= last; ++candidate) {
    const bool fits = std::ranges::all_of(
        members, [&](size_t member) { return pairs.contains({member, candidate}); });
    if (fits)
      members.push_back(candidate);
  }
  return members;
}

// Lines begin in the middle of a GPU's box until ports are chosen.
LinkRun run_of(const Link& link, const std::vector<size_t>& members, const HostLayout& layout) {
  LinkRun run{.link = link};
  run.ports = mapped(
      members, [&](size_t member) { return LinkPort{member, layout.gpus[member].box.middle()}; });
  return run;
}

// Removes all pairs of the members, in either order.
void erase_inside(std::set<Pair>& pairs, const std::vector<size_t>& members) {
  for (const size_t a : members) {
    for (const size_t b : members)
      pairs.erase({a, b});
  }
}

// Returns all that can be reached over `pairs` from the first of them, in order.
std::vector<size_t> component_of(const std::set<Pair>& pairs) {
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

// Whether each two of the members are a pair.
bool all_in(const std::set<Pair>& pairs, const std::vector<size_t>& members) {
  for (size_t i = 0; i < members.size(); ++i) {
    for (size_t j = i + 1; j < members.size(); ++j) {
      if (!pairs.contains({members[i], members[j]}))
        return false;
    }
  }
  return true;
}

// Adds a bar for GPUs that are joined over host bridges wherever nothing nearer joins them: lines
// would be a tangle. Pairs that make no bar stay in `exact`.
void add_remainders(std::vector<LinkRun>& runs,
                    Pairs& exact,
                    const std::set<Pair>& near,
                    const HostLayout& layout) {
  std::set<Pair> rest;
  while (!exact.pairs.empty()) {
    const std::vector<size_t> members = component_of(exact.pairs);
    std::set<Pair> inside;
    std::ranges::copy_if(exact.pairs, std::inserter(inside, inside.end()), [&](const Pair& pair) {
      return std::ranges::binary_search(members, pair.first);
    });
    erase_inside(exact.pairs, members);
    if (inside.size() >= kFewestBarred && all_in(near, members)) {
      runs.push_back(run_of(exact.link, members, layout));
      runs.back().partial = !all_in(inside, members);
    } else {
      rest.merge(inside);
    }
  }
  exact.pairs = std::move(rest);
}

bool leads_over_host_bridges(LinkKind kind) {
  return is_one_of(kind, LinkKind::phb, LinkKind::node, LinkKind::sys);
}

// Of what is left of a kind, the largest sets become bars and the rest lines.
std::vector<LinkRun> find_runs(const Host& host, const HostLayout& layout) {
  std::vector<LinkRun> runs;
  std::set<Pair> near;  // joined by this kind or a nearer one
  for (Pairs& exact : pairs_by_link(host, layout)) {
    near.insert(exact.pairs.begin(), exact.pairs.end());
    if (leads_over_host_bridges(exact.link.kind))
      add_remainders(runs, exact, near, layout);
    while (!exact.pairs.empty()) {
      std::vector<size_t> members = clique_of(exact.pairs);
      if (members.size() < kFewestBarred)
        members = {exact.pairs.begin()->first, exact.pairs.begin()->second};
      erase_inside(exact.pairs, members);
      runs.push_back(run_of(exact.link, members, layout));
    }
  }
  // Fast links nearest to the GPUs, then short ones: what matters is seen first, and lines nest.
  std::ranges::stable_sort(runs, {}, [](const LinkRun& run) {
    const int width = run.right() - run.left();
    return std::tuple(run.link.kind, !run.bar(), width, -run.link.count, run.left());
  });
  return runs;
}

// A lane holds bars or lines, beside each other.
struct Lane {
  bool bar;
  std::vector<std::pair<int, int>> taken;  // from left to right

  bool has_room(const LinkRun& run) const {
    return bar == run.bar() && std::ranges::none_of(taken, [&](const auto& other) {
             return run.left() < other.second && other.first < run.right();
           });
  }
};

// Gives every run the uppermost lane in which it meets no other. Returns where the lanes end.
int choose_lanes(std::vector<LinkRun>& runs, int top) {
  std::vector<Lane> lanes;
  for (LinkRun& run : runs) {
    run.lane = 0;
    while (run.lane < int_size(lanes) && !lanes[run.lane].has_room(run))
      ++run.lane;
    if (run.lane == int_size(lanes))
      lanes.push_back({.bar = run.bar(), .taken = {}});
    lanes[run.lane].taken.emplace_back(run.left(), run.right());
  }
  std::vector<int> tops;
  for (const Lane& lane : lanes) {
    tops.push_back(top);
    top += lane.bar ? kBarLane : kLane;
  }
  for (LinkRun& run : runs) {
    run.y = tops[run.lane];
    run.height = run.bar() ? kBarHeight : 0;
  }
  return top;
}

// Returns to which side a run goes on from one of its ports: 1 to the right, -1 to the left, 0 to
// both.
int side_of(const LinkRun& run, const LinkPort& port) {
  if (&port == &run.ports.back())
    return -1;
  return &port == &run.ports.front() ? 1 : 0;
}

// Sets where each GPU's lines leave its box: those to the left at its left, the deepest of them
// nearest to the middle, so that no line of a GPU crosses another of its own.
void choose_ports(std::vector<LinkRun>& runs, const HostLayout& layout) {
  struct End {
    std::tuple<int, int> order;
    LinkPort* port;
  };
  std::map<size_t, std::vector<End>> ends;
  for (LinkRun& run : runs) {
    for (LinkPort& port : run.ports) {
      const int side = side_of(run, port);
      ends[port.gpu].push_back({{side, -side * run.lane}, &port});
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
  LinkDrawing drawing{.runs = find_runs(host, layout), .bottom = top};
  drawing.bottom = choose_lanes(drawing.runs, top);
  choose_ports(drawing.runs, layout);
  return drawing;
}

}  // namespace muster
