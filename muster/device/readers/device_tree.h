// How devices are joined over PCIe, from the tree of bridges, host bridges and NUMA nodes that they
// hang on. For the readers whose files hold such a tree.
#pragma once

#include <cstddef>
#include <vector>

#include "muster/base/lists.h"
#include "muster/device/inventory.h"

namespace muster {

class DeviceTree {
 public:
  // `switch_levels`: how many bridges a device hangs below the top of its own PCIe switch, itself
  // included. 1 where a switch is one node of the tree, 2 where its ports are nodes too.
  explicit DeviceTree(size_t switch_levels) : switch_levels_(switch_levels) {}

  static constexpr size_t kRoot = 0;

  // A node below `parent`; devices whose ways meet there first are joined by `meet`: pix for a PCIe
  // bridge, which becomes pxb when more than one switch lies between, phb, node or sys. Returns the
  // node.
  size_t add(size_t parent, LinkKind meet);

  LinkKind link(size_t a, size_t b) const;

  // A row for each of `from`, with a link to each of `to`.
  LinkMatrix links(const Indices& from, const Indices& to) const;

 private:
  struct Node {
    size_t parent = 0;
    size_t depth = 0;
    LinkKind meet = LinkKind::sys;
  };
  size_t switch_levels_;
  std::vector<Node> nodes_{Node{}};
};

}  // namespace muster
