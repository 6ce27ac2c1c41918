#include "muster/device/readers/device_tree.h"

#include <algorithm>

namespace muster {

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
  const LinkKind meet = nodes_[a].meet;
  return meet == LinkKind::pix && lowest - nodes_[a].depth > switch_levels_ ? LinkKind::pxb : meet;
}

}  // namespace muster
