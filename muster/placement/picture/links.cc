#include "muster/placement/picture/links.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

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

// The nearest kind first, and of a kind the most links first.
std::vector<Pairs> pairs_by_link(const Host& host, const HostLayout& layout) {
  std::map<std::pair<LinkKind, int>, Pairs> found;
  for (size_t a = 0; a < layout.gpus.size(); ++a) {
    for (size_t b = a + 1; b < layout.gpus.size(); ++b) {
      const size_t i = layout.gpus[a].gpu;
      const size_t j = layout.gpus[b].gpu;
      if (i >= host.gpu_links.size() || j >= host.gpu_links[i].size())
        continue;
      const Link& link = host.gpu_links[i][j];
      if (link.kind == LinkKind::unknown || link.kind == LinkKind::self)
        continue;
      Pairs& same = found[{link.kind, -link.count}];
      same.link = link;
      same.pairs.insert({a, b});
    }
  }
  std::vector<Pairs> list;
  list.reserve(found.size());
  for (auto& [key, pairs] : found)
    list.push_back(std::move(pairs));
  return list;
}

// A largest set of GPUs, grown greedily from the leftmost pair, in which all pairs are in `pairs`.
std::vector<size_t> clique_of(const std::set<Pair>& pairs) {
  std::vector<size_t> members = {pairs.begin()->first, pairs.begin()->second};
  size_t last = 0;
  for (const auto& [a, b] : pairs)
    last = std::max(last, b);
  for (size_t candidate = members[1] + 1; candidate <= last; ++candidate) {
    const bool fits = std::all_of(members.begin(), members.end(), [&](size_t member) {
      return pairs.contains({member, candidate});
    });
    if (fits)
      members.push_back(candidate);
  }
  return members;
}

LinkRun run_of(const Link& link, const std::vector<size_t>& members, const HostLayout& layout) {
  LinkRun run{.link = link};
  for (const size_t member : members)
    run.ports.push_back({member, layout.gpus[member].box.middle()});
  return run;
}

void erase_inside(std::set<Pair>& pairs, const std::vector<size_t>& members) {
  for (const size_t a : members) {
    for (const size_t b : members)
      pairs.erase({a, b});
  }
}

// All that can be reached over `pairs` from the first of them, in order.
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

bool all_in(const std::set<Pair>& pairs, const std::vector<size_t>& members) {
  for (size_t i = 0; i < members.size(); ++i) {
    for (size_t j = i + 1; j < members.size(); ++j) {
      if (!pairs.contains({members[i], members[j]}))
        return false;
    }
  }
  return true;
}

// The way over host bridges joins whatever nothing nearer does: one bar says so, where lines would
// be a tangle.
void add_remainders(std::vector<LinkRun>& runs,
                    Pairs& exact,
                    const std::set<Pair>& near,
                    const HostLayout& layout) {
  std::set<Pair> rest;
  while (!exact.pairs.empty()) {
    const std::vector<size_t> members = component_of(exact.pairs);
    std::set<Pair> inside;
    for (const Pair& pair : exact.pairs) {
      if (std::binary_search(members.begin(), members.end(), pair.first))
        inside.insert(pair);
    }
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

std::vector<LinkRun> find_runs(const Host& host, const HostLayout& layout) {
  std::vector<LinkRun> runs;
  std::set<Pair> near;  // joined by this kind or a nearer one
  for (Pairs& exact : pairs_by_link(host, layout)) {
    near.insert(exact.pairs.begin(), exact.pairs.end());
    const bool bridges = exact.link.kind == LinkKind::phb || exact.link.kind == LinkKind::node ||
                         exact.link.kind == LinkKind::sys;
    if (bridges)
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
  const auto key = [](const LinkRun& run) {
    return std::tuple(
        run.link.kind, run.bar() ? 0 : 1, run.right() - run.left(), -run.link.count, run.left());
  };
  std::stable_sort(runs.begin(), runs.end(), [&](const LinkRun& a, const LinkRun& b) {
    return key(a) < key(b);
  });
  return runs;
}

// Gives every run the uppermost lane in which it meets no other. Bars and lines have lanes of their
// own.
int choose_lanes(std::vector<LinkRun>& runs, int top) {
  struct Lane {
    bool bar;
    std::vector<std::pair<int, int>> taken;
  };
  std::vector<Lane> lanes;
  for (LinkRun& run : runs) {
    const auto meets = [&](const std::pair<int, int>& other) {
      return run.left() < other.second && other.first < run.right();
    };
    const auto found = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) {
      return lane.bar == run.bar() && std::none_of(lane.taken.begin(), lane.taken.end(), meets);
    });
    run.lane = static_cast<int>(found - lanes.begin());
    if (found == lanes.end())
      lanes.push_back({.bar = run.bar(), .taken = {}});
    lanes[static_cast<size_t>(run.lane)].taken.emplace_back(run.left(), run.right());
  }
  std::vector<int> tops;
  for (const Lane& lane : lanes) {
    tops.push_back(top);
    top += lane.bar ? kBarLane : kLane;
  }
  for (LinkRun& run : runs) {
    run.y = tops[static_cast<size_t>(run.lane)];
    run.height = run.bar() ? kBarHeight : 0;
  }
  return top;
}

// Where each GPU's lines leave its box: those to the left at its left, the deepest of them nearest
// to the middle, so that no line of a GPU crosses another of its own.
void choose_ports(std::vector<LinkRun>& runs, const HostLayout& layout) {
  struct End {
    std::tuple<int, int> order;
    LinkPort* port;
  };
  std::map<size_t, std::vector<End>> ends;
  for (LinkRun& run : runs) {
    for (LinkPort& port : run.ports) {
      const bool first = &port == &run.ports.front();
      const bool last = &port == &run.ports.back();
      const int side = last ? -1 : first ? 1 : 0;
      ends[port.gpu].push_back({{side, -side * run.lane}, &port});
    }
  }
  for (auto& [gpu, list] : ends) {
    std::stable_sort(
        list.begin(), list.end(), [](const End& a, const End& b) { return a.order < b.order; });
    const SvgBox& box = layout.gpus[gpu].box;
    const int count = static_cast<int>(list.size());
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
