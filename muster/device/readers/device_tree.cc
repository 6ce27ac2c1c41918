// Two devices' ways up are followed, always from the lower of the two places, until they meet. How
// far below that the lower device hangs tells one switch from several.
#include "muster/device/readers/device_tree.h"

#include <algorithm>

#include "muster/base/mapped.h"

namespace muster {

// Parents come before their children, so depths are known at once.
size_t DeviceTree::add(size_t parent, LinkKind meet) {
  nodes_.push_back({parent, nodes_[parent].depth + 1, meet});
  return nodes_.size() - 1;
}

LinkKind DeviceTree::link(size_t a, size_t b) const {
  if (a == b)
    return LinkKind::self;
  const size_t lowest = std::max(nodes_[a].depth, nodes_[b].depth);
  while (a != b) {
    size_t& lower = nodes_[a].depth >= nodes_[b].depth ? a : b;
    lower = nodes_[lower].parent;
  }
  const Node& top = nodes_[a];
  const bool several_switches = lowest - top.depth > switch_levels_;
  return top.meet == LinkKind::pix && several_switches ? LinkKind::pxb : top.meet;
}

LinkMatrix DeviceTree::links(const Indices& from, const Indices& to) const {
  return mapped(from,
                [&](size_t a) { return mapped(to, [&](size_t b) { return Link{link(a, b)}; }); });
}

}  // namespace muster
