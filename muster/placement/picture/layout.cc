// Devices below the same switches are grouped first, groups and cores are sorted into NUMA nodes,
// and nodes stand side by side. Heights are measured over all nodes before anything is placed, so
// that all GPUs stand in one row.
#include "muster/placement/picture/layout.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/divided_up.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/device/numbers.h"

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

// Joins devices that are below the same switches. GPUs come first in the numbering, then NICs.
class Groups {
 public:
  explicit Groups(const Host& host)
      : host_(host), parent_(numbers_below(host.gpus.size() + host.nics.size())) {
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
  // `offset` is the number of the first device that the columns stand for. A matrix may be larger
  // than the list of devices.
  void join_all(const LinkMatrix& links, size_t offset) {
    const size_t rows = std::min(links.size(), host_.gpus.size());
    for (size_t i = 0; i < rows; ++i) {
      const size_t columns = std::min(links[i].size(), parent_.size() - offset);
      for (size_t j = 0; j < columns; ++j)
        join_by(links[i][j].kind, i, offset + j);
    }
  }

  void join_by(LinkKind kind, size_t a, size_t b) {
    if (is_one_of(kind, LinkKind::pix, LinkKind::pxb))
      join(a, b, kind == LinkKind::pxb);
  }

  // The lower number becomes the root, so that groups are in the order of their first devices.
  void join(size_t a, size_t b, bool several) {
    const size_t low = std::min(root(a), root(b));
    const size_t high = std::max(root(a), root(b));
    if (several || several_.contains(high))
      several_.insert(low);
    parent_[high] = low;
  }

  const Host& host_;
  Indices parent_;
  std::set<size_t> several_;  // roots of groups with several switches
};

// The unknown node comes first here; it is moved to the end later.
using Nodes = std::map<std::optional<int>, NodePlace>;

// Returns the node of the first device of the group that knows its own.
std::optional<int> node_of(const PciGroup& group, const Host& host) {
  for (const GpuPlace& gpu : group.gpus) {
    if (host.gpus[gpu.gpu].numa_node)
      return host.gpus[gpu.gpu].numa_node;
  }
  for (const NicPlace& nic : group.nics) {
    if (host.nics[nic.nic].numa_node)
      return host.nics[nic.nic].numa_node;
  }
  return std::nullopt;
}

// NICs that share a switch with no GPU stand by themselves in their node.
void add_devices(const Host& host, Nodes& nodes) {
  const Groups groups(host);
  const size_t num_gpus = host.gpus.size();
  std::map<size_t, PciGroup> by_root;
  for (size_t i = 0; i < num_gpus; ++i)
    by_root[groups.root(i)].gpus.push_back({i});
  for (const size_t k : indices_of(host.nics))
    by_root[groups.root(num_gpus + k)].nics.push_back({k});
  for (auto& [root, group] : by_root) {
    group.several_switches = groups.several_switches(root);
    NodePlace& node = nodes[node_of(group, host)];
    if (group.gpus.empty()) {
      append_all(node.nics, group.nics);
    } else {
      node.groups.push_back(std::move(group));
    }
  }
}

// A node with too many cores shows none of them.
std::vector<NodePlace> make_nodes(const Host& host) {
  Nodes nodes;
  for (const size_t i : indices_of(host.cores)) {
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
  std::ranges::stable_sort(list, {}, [](const NodePlace& node) {
    return std::tuple(
        !node.socket, node.socket.value_or(0), !node.numa_node, node.numa_node.value_or(0));
  });
  return list;
}

// Returns how many items fit into a row; one at least.
int fits(int width, int item, int gap) {
  return std::max(1, (width + gap) / (item + gap));
}

int height_of_cores(const std::vector<CorePlace>& cores, int width) {
  const int per_row = fits(width, kCore, kCoreStep - kCore);
  return divided_up(int_size(cores), per_row) * kCoreStep;
}

int height_of_nics(const std::vector<NicPlace>& nics, int width) {
  const int per_row = fits(width, kNicWidth, kNicGap);
  return divided_up(int_size(nics), per_row) * (kNicHeight + kNicGap);
}

int group_width(const PciGroup& group) {
  const int count = int_size(group.gpus);
  return count * kGpuWidth + (count - 1) * kGap + 2 * kPad;
}

// A node is as wide as its groups side by side, and wide enough for a row of cores.
int node_width(const NodePlace& node) {
  int width = 0;
  for (const PciGroup& group : node.groups)
    width += group_width(group) + kGap;
  return std::max(width - kGap, kLeastNodeWidth) + 2 * kPad;
}

// The heights of what lies in rows across all nodes, so that all GPUs stand at one height.
struct Rows {
  int cores = 0;
  int nics = 0;        // of NICs near no GPU
  int group_nics = 0;  // of NICs in groups
  int gpus = 0;
  bool sockets = false;
};

// A host without GPUs has no room for them.
Rows measure(const std::vector<NodePlace>& nodes, int chip_rows) {
  Rows rows;
  for (const NodePlace& node : nodes) {
    const int inner = node_width(node) - 2 * kPad;
    rows.cores = std::max(rows.cores, height_of_cores(node.cores, inner));
    rows.nics = std::max(rows.nics, height_of_nics(node.nics, inner));
    for (const PciGroup& group : node.groups) {
      const int nics = height_of_nics(group.nics, group_width(group) - 2 * kPad);
      rows.group_nics = std::max(rows.group_nics, nics);
      rows.gpus = kGpuHeight + chip_rows * kChipRow;
    }
    rows.sockets |= node.socket.has_value();
  }
  return rows;
}

template <class Places>
void place_in_rows(
    Places& places, int x, int y, int width, int item_width, int item_height, int gap) {
  const int per_row = fits(width, item_width, gap);
  for (const int i : int_indices_of(places)) {
    const int left = x + i % per_row * (item_width + gap);
    const int top = y + i / per_row * (item_height + gap);
    places[i].box = {left, top, item_width, item_height};
  }
}

// NICs come first, in rows; the GPUs stand below them.
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

// Cores, NICs and groups lie below the title, each as high as the highest of all nodes.
void place_node(NodePlace& node, int x, int y, const Rows& rows) {
  node.box = {x, y, node_width(node), 0};
  const int inner = node.box.width - 2 * kPad;
  int at = y + kTitle + 4;
  place_in_rows(node.cores, x + kPad, at, inner, kCore, kCore, kCoreStep - kCore);
  if (rows.cores > 0)
    at += rows.cores + kGap;
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

// Places the nodes side by side, with a box around every run of nodes of one socket.
void place_sockets(HostLayout& layout, int x, int y, const Rows& rows) {
  std::optional<int> open;
  int at = x;
  for (NodePlace& node : layout.nodes) {
    const bool is_other = node.socket != open;
    if (is_other && open)
      at += kPad;  // the former socket's right side
    if (at != x)
      at += kGap;
    if (is_other && node.socket) {
      layout.sockets.push_back({*node.socket, {at, y, 0, 0}});
      at += kPad;
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

// The box around all is found last, from what was placed.
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
    for (const PciGroup& group : node.groups)
      append_all(layout.gpus, group.gpus);
  }
  return layout;
}

}  // namespace muster
