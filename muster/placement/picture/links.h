// The lines between a host's GPUs in a picture, below their row: one lane for each link, and a bar
// instead of many lines where GPUs are all joined alike. For draw_svg.cc; a private header. It is
// pure.
#pragma once

#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/placement/picture/layout.h"

namespace muster {

struct LinkPort {  // where a link leaves a GPU's box
  size_t gpu = 0;  // position in HostLayout::gpus
  int x = 0;
};

struct DrawnLink {  // a line of two ports, or a bar of more
  Link link{};
  std::vector<LinkPort> ports{};  // from left to right
  bool is_partial = false;        // a bar: nearer links, which are drawn too, join some of its GPUs
  int lane = 0;
  int y = 0;       // of the line, or the bar's upper edge
  int height = 0;  // 0: a line
  int left() const { return ports.front().x; }
  int right() const { return ports.back().x; }
  int middle() const { return (left() + right()) / 2; }
  bool is_bar() const { return ports.size() > 2; }
};

struct LinkDrawing {
  std::vector<DrawnLink> drawn{};
  int bottom = 0;
};

// Links of an unknown kind are left out. `top`: where the lanes begin.
LinkDrawing route_links(const Host& host, const HostLayout& layout, int top);

}  // namespace muster
