// Each switch makes blocks of what its own hosts and the switches below have left over, from the
// smallest size to the largest, and hands on what it could not use. So no block crosses a switch
// that could have had it.
#include "muster/placement/network_order.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

using Block = Indices;  // hosts, by their positions

// A switch, or the whole network. Switches and hosts below it keep the order in which they came.
class Switch {
 public:
  void add(std::span<const std::string> path, size_t host) {
    if (path.empty())
      return below_.push_back({.host = host});
    const std::string& name = path.front();
    if (!numbers_.contains(name)) {
      numbers_[name] = below_.size();
      below_.push_back({.node = std::make_unique<Switch>()});
    }
    below_[numbers_.at(name)].node->add(path.subspan(1), host);
  }

  // Of each size the blocks that are not part of a larger one: sizes[0] is one host.
  std::vector<std::vector<Block>> blocks(const Int64s& sizes) const {
    std::vector<std::vector<Block>> all(sizes.size());
    for (const Below& below : below_) {
      if (!below.node) {
        all[0].push_back({below.host});
        continue;
      }
      auto theirs = below.node->blocks(sizes);
      for (const size_t i : indices_of(sizes))
        std::ranges::move(theirs[i], std::back_inserter(all[i]));
    }
    for (size_t i = 0; i + 1 < sizes.size(); ++i)
      join(all[i], sizes[i + 1] / sizes[i], all[i + 1]);
    return all;
  }

 private:
  // Either a switch or a host.
  struct Below {
    std::unique_ptr<Switch> node{};
    size_t host = 0;
  };

  // Makes as many larger blocks as there are enough smaller ones for; the rest stays.
  static void join(std::vector<Block>& smaller, int64_t count, std::vector<Block>& larger) {
    const int64_t whole = std::ssize(smaller) / count;
    for (int64_t i = 0; i < whole; ++i) {
      Block block;
      for (int64_t k = 0; k < count; ++k)
        append_all(block, smaller[i * count + k]);
      larger.push_back(std::move(block));
    }
    smaller.erase(smaller.begin(), smaller.begin() + whole * count);
  }

  std::vector<Below> below_;
  std::map<std::string, size_t> numbers_;
};

// 0 where the mesh does not say it.
int64_t ranks_by_mesh(const MeshAxes& axes, int64_t hosts) {
  int64_t ranks = 1;
  for (const MeshAxis& axis : axes)
    ranks *= std::max(axis.size, 0);
  return hosts > 0 && ranks % hosts == 0 ? ranks / hosts : 0;
}

}  // namespace

Strings switches_of(const SwitchPaths& paths, const std::string& host) {
  for (const std::string& name : {host, host.substr(0, host.find('.'))})
    if (const Strings* const found = value_at(paths, name))
      return *found;
  return {};
}

// The largest blocks come first, in the network's order, then what is left of each smaller size.
Indices network_order(const SwitchPaths& paths, const Strings& hosts, const Int64s& blocks) {
  if (paths.empty())
    return numbers_below(hosts.size());
  Block order;
  Switch network;
  for (const size_t i : indices_of(hosts))
    network.add(switches_of(paths, hosts[i]), i);
  Int64s sizes{1};
  append_all(sizes, blocks);
  for (const auto& of_size : network.blocks(sizes) | std::views::reverse)
    for (const Block& block : of_size)
      append_all(order, block);
  return order;
}

Int64s blocks_of_mesh(const MeshAxes& axes, std::optional<int64_t> ranks_of_host, int64_t hosts) {
  Int64s blocks;
  const int64_t each = ranks_of_host.value_or(ranks_by_mesh(axes, hosts));
  if (each < 1)
    return blocks;
  int64_t ranks = 1;
  for (const MeshAxis& axis : axes | std::views::drop(1) | std::views::reverse) {
    if (axis.size < 1)
      break;
    ranks *= axis.size;
    if (ranks <= each || ranks % each != 0)
      continue;
    const int64_t filled = ranks / each;
    if (blocks.empty() || (filled > blocks.back() && filled % blocks.back() == 0))
      blocks.push_back(filled);
  }
  return blocks;
}

}  // namespace muster
