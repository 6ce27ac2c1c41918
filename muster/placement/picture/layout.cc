#include "muster/placement/picture/layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace muster {

namespace {

constexpr int kGpuWidth = 132;
constexpr int kGpuHeight = 84;
constexpr int kChipRow = 20;
constexpr int kGap = 10;
constexpr int kPad = 10;
constexpr int kTitle = 20;
constexpr int kNicWidth = 61;
constexpr int kNicHeight = 20;
constexpr int kNicGap = 5;
constexpr int kCore = 9;
constexpr int kCoreStep = 11;
constexpr int kLeastNodeWidth = 16 * kCoreStep;
constexpr size_t kMostCoresDrawn = 512;  // of a node; with more, only their number is told

// Which devices are below the same switches: GPUs come first in the numbering, then NICs.
class Groups {
 public:
  explicit Groups(const Host& host) : host_(host), parent_(host.gpus.size() + host.nics.size()) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
    join_all(host.gpu_links, 0);
    join_all(host.nic_links, host.gpus.size());
  }

  size_t root(size_t device) const {
    while (parent_[device] != device)
      device = parent_[device];
    return device;
  }
  bool several_switches(size_t root) const { return several_.contains(root); }

 private:
  void join_all(const std::vector<std::vector<Link>>& links, size_t offset) {
    for (size_t i = 0; i < links.size() && i < host_.gpus.size(); ++i) {
      for (size_t j = 0; j < links[i].size() && offset + j < parent_.size(); ++j) {
        const LinkKind kind = links[i][j].kind;
        if (kind != LinkKind::pix && kind != LinkKind::pxb)
          continue;
        join(i, offset + j, kind == LinkKind::pxb);
      }
    }
  }

  void join(size_t a, size_t b, bool several) {
    const size_t low = std::min(root(a), root(b));
    const size_t high = std::max(root(a), root(b));
    if (several || several_.contains(high))
      several_[low] = true;
    parent_[high] = low;
  }

  const Host& host_;
  std::vector<size_t> parent_;
  std::map<size_t, bool> several_;
};

using Nodes =
    std::map<std::optional<int>, NodePlace>;  // the unknown one first; moved to the end later

std::optional<int> node_of(const std::vector<size_t>& members, const Host& host) {
  for (const size_t member : members) {
    const bool gpu = member < host.gpus.size();
    const auto& node =
        gpu ? host.gpus[member].numa_node : host.nics[member - host.gpus.size()].numa_node;
    if (node)
      return node;
  }
  return std::nullopt;
}

void add_devices(const Host& host, Nodes& nodes) {
  const Groups groups(host);
  std::map<size_t, std::vector<size_t>> members;
  for (size_t i = 0; i < host.gpus.size() + host.nics.size(); ++i)
    members[groups.root(i)].push_back(i);
  for (const auto& [root, devices] : members) {
    NodePlace& node = nodes[node_of(devices, host)];
    PciGroup group{.several_switches = groups.several_switches(root)};
    for (const size_t device : devices) {
      if (device < host.gpus.size()) {
        group.gpus.push_back({device});
      } else {
        group.nics.push_back({device - host.gpus.size()});
      }
    }
    if (group.gpus.empty()) {
      node.nics.insert(node.nics.end(), group.nics.begin(), group.nics.end());
    } else {
      node.groups.push_back(std::move(group));
    }
  }
}

std::vector<NodePlace> make_nodes(const Host& host) {
  Nodes nodes;
  for (size_t i = 0; i < host.cores.size(); ++i) {
    NodePlace& node = nodes[host.cores[i].numa_node];
    node.socket = host.cores[i].socket;
    node.cores.push_back({i});
  }
  add_devices(host, nodes);
  std::vector<NodePlace> list;
  for (auto& [number, node] : nodes) {
    node.numa_node = number;
    if (node.cores.size() > kMostCoresDrawn)
      node.cores.clear();
    list.push_back(std::move(node));
  }
  // Nodes of one socket stand together; those that belong to none (or are not known) at the end.
  std::stable_sort(list.begin(), list.end(), [](const NodePlace& a, const NodePlace& b) {
    const auto key = [](const NodePlace& node) {
      return std::tuple(
          !node.socket, node.socket.value_or(0), !node.numa_node, node.numa_node.value_or(0));
    };
    return key(a) < key(b);
  });
  return list;
}

int fits(int width, int item, int gap) {
  return std::max(1, (width + gap) / (item + gap));
}

int rows_of(size_t count, int per_row) {
  return (static_cast<int>(count) + per_row - 1) / per_row;
}

int group_width(const PciGroup& group) {
  const int count = static_cast<int>(group.gpus.size());
  return count * kGpuWidth + (count - 1) * kGap + 2 * kPad;
}

int node_width(const NodePlace& node) {
  int width = 0;
  for (const PciGroup& group : node.groups)
    width += group_width(group) + kGap;
  return std::max(width - kGap, kLeastNodeWidth) + 2 * kPad;
}

// What lies in rows across all nodes, so that all GPUs stand at one height.
struct Rows {
  int cores = 0;
  int nics = 0;        // of NICs near no GPU
  int group_nics = 0;  // of NICs in groups
  int gpus = 0;
  bool sockets = false;
};

Rows measure(const std::vector<NodePlace>& nodes, int chip_rows) {
  Rows rows;
  for (const NodePlace& node : nodes) {
    const int inner = node_width(node) - 2 * kPad;
    rows.cores = std::max(
        rows.cores, rows_of(node.cores.size(), fits(inner, kCore, kCoreStep - kCore)) * kCoreStep);
    rows.nics = std::max(
        rows.nics,
        rows_of(node.nics.size(), fits(inner, kNicWidth, kNicGap)) * (kNicHeight + kNicGap));
    for (const PciGroup& group : node.groups) {
      const int per_row = fits(group_width(group) - 2 * kPad, kNicWidth, kNicGap);
      rows.group_nics =
          std::max(rows.group_nics, rows_of(group.nics.size(), per_row) * (kNicHeight + kNicGap));
      rows.gpus = kGpuHeight + chip_rows * kChipRow;
    }
    rows.sockets = rows.sockets || node.socket;
  }
  return rows;
}

template <class Places>
void place_in_rows(
    Places& places, int x, int y, int width, int item_width, int item_height, int gap) {
  const int per_row = fits(width, item_width, gap);
  for (size_t i = 0; i < places.size(); ++i) {
    const int column = static_cast<int>(i) % per_row;
    const int row = static_cast<int>(i) / per_row;
    places[i].box = {
        x + column * (item_width + gap), y + row * (item_height + gap), item_width, item_height};
  }
}

void place_group(PciGroup& group, int x, int y, const Rows& rows) {
  group.box = {x, y, group_width(group), kTitle + rows.group_nics + rows.gpus + kPad};
  place_in_rows(
      group.nics, x + kPad, y + kTitle, group.box.width - 2 * kPad, kNicWidth, kNicHeight, kNicGap);
  int at = x + kPad;
  for (GpuPlace& gpu : group.gpus) {
    gpu.box = {at, y + kTitle + rows.group_nics, kGpuWidth, rows.gpus};
    at += kGpuWidth + kGap;
  }
}

void place_node(NodePlace& node, int x, int y, const Rows& rows) {
  node.box = {x, y, node_width(node), 0};
  const int inner = node.box.width - 2 * kPad;
  int at = y + kTitle + 4;
  place_in_rows(node.cores, x + kPad, at, inner, kCore, kCore, kCoreStep - kCore);
  at += rows.cores + (rows.cores > 0 ? kGap : 0);
  place_in_rows(node.nics, x + kPad, at, inner, kNicWidth, kNicHeight, kNicGap);
  at += rows.nics;
  int left = x + kPad;
  for (PciGroup& group : node.groups) {
    place_group(group, left, at, rows);
    left = group.box.right() + kGap;
  }
  if (rows.gpus > 0)
    at += kTitle + rows.group_nics + rows.gpus + kPad + kPad;
  node.box.height = at - y;
}

// A box around every run of nodes of one socket. Returns the right end of the nodes.
void place_sockets(HostLayout& layout, int x, int y, const Rows& rows) {
  std::optional<int> open;
  int at = x;
  for (NodePlace& node : layout.nodes) {
    if (node.socket != open && open)
      at += kPad;  // the former socket's right side
    if (node.socket && node.socket != open) {
      at += at == x ? 0 : kGap;
      layout.sockets.push_back({*node.socket, {at, y, 0, 0}});
      at += kPad;
    } else if (at != x) {
      at += kGap;
    }
    open = node.socket;
    place_node(node, at, y + (rows.sockets ? kTitle + 4 : 0), rows);
    at = node.box.right();
    if (open) {
      SvgBox& box = layout.sockets.back().box;
      box.width = at + kPad - box.x;
      box.height = node.box.bottom() + kPad - y;
    }
  }
}

}  // namespace

HostLayout lay_out_host(const Host& host, int x, int y, int chip_rows) {
  HostLayout layout;
  layout.nodes = make_nodes(host);
  place_sockets(layout, x, y, measure(layout.nodes, chip_rows));
  layout.box = {x, y, 0, 0};
  const auto cover = [&](const SvgBox& box) {
    layout.box.width = std::max(layout.box.width, box.right() - x);
    layout.box.height = std::max(layout.box.height, box.bottom() - y);
  };
  for (const SocketPlace& socket : layout.sockets)
    cover(socket.box);
  for (const NodePlace& node : layout.nodes) {
    cover(node.box);
    for (const PciGroup& group : node.groups) {
      layout.gpus.insert(layout.gpus.end(), group.gpus.begin(), group.gpus.end());
    }
  }
  return layout;
}

}  // namespace muster
