// A host is laid out first (layout.h), then its links are led below it (links.h), and only then is
// anything drawn: what is drawn later lies above. Ranks are looked up by the UUIDs of their
// devices.
#include "muster/placement/picture/draw_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <ranges>
#include <string_view>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/divided_up.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/device/cpu_list.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/draw/svg_canvas.h"
#include "muster/draw/xml_text.h"
#include "muster/placement/picture/layout.h"
#include "muster/placement/picture/links.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

constexpr int kMargin = 20;
constexpr int kHeader = 46;
constexpr int kLegendRow = 18;
constexpr int kChipsInRow = 2;
constexpr int kMostChips = 4;  // of a GPU; more ranks share one chip with all their numbers
constexpr auto kDark = "#212529";
constexpr auto kGrey = "#5c636a";
constexpr auto kRed = "#c92a2a";
constexpr auto kRankFill = "#1864ab";
constexpr auto kCoreEdge = "#adb5bd";

// The looks of boxes and words, a line for each property.
constexpr SvgStyle kSocketBox = {
    .fill = "#f8f9fa",
    .stroke = "#868e96",
    .stroke_width = 1.5,
    .radius = 8,
};
constexpr SvgStyle kNodeBox = {
    .fill = "#fff9db",
    .stroke = "#b08900",
    .radius = 6,
};
constexpr SvgStyle kGroupBox = {
    .fill = "#e7f1fb",
    .stroke = "#1971c2",
    .radius = 5,
};
constexpr SvgStyle kNicBox = {
    .fill = "#f3f0ff",
    .stroke = "#6741d9",
    .radius = 3,
};
constexpr SvgStyle kChipBox = {
    .fill = kRankFill,
    .radius = 4,
};
constexpr SvgFont kHostFont = {
    .size = 16,
    .bold = true,
};
constexpr SvgFont kFactsFont = {
    .size = 12,
    .fill = kGrey,
};
constexpr SvgFont kChipFont = {
    .size = 10,
    .bold = true,
    .fill = "#ffffff",
    .align = SvgAlign::middle,
};
constexpr SvgFont kSocketFont = {
    .size = 12,
    .bold = true,
};
constexpr SvgFont kGroupFont = {
    .size = 10,
    .fill = "#0b4a86",
};
constexpr SvgFont kNicFont = {
    .size = 10,
    .align = SvgAlign::middle,
};
constexpr SvgFont kGpuFont = {
    .size = 13,
    .bold = true,
};
constexpr SvgFont kMemoryFont = {
    .fill = kGrey,
    .align = SvgAlign::right,
};

struct KindStyle {
  LinkKind kind;
  const char* colour;
  const char* meaning;
  const char* dashes = "";
};

constexpr std::array<KindStyle, 7> kKinds = {
    {{LinkKind::nvlink, "#2b8a3e", "NVLink"},
     {LinkKind::xgmi, "#d9480f", "Infinity Fabric"},
     {LinkKind::pix, "#1971c2", "one PCIe switch"},
     {LinkKind::pxb, "#0c8599", "several PCIe switches"},
     {LinkKind::phb, "#7048e8", "a PCIe host bridge"},
     {LinkKind::node, "#ae3ec9", "host bridges of one NUMA node"},
     {LinkKind::sys, "#6c757d", "across NUMA nodes", "5 3"}}};

// Kinds that are not in the table are never drawn, so the last one can stand for them.
const KindStyle& style_of(LinkKind kind) {
  const KindStyle* const style = element_with(kKinds, kind, &KindStyle::kind);
  return style != nullptr ? *style : kKinds.back();
}

// Several links between two GPUs make a thicker line.
SvgStyle line_style(const Link& link) {
  const KindStyle& kind = style_of(link.kind);
  return {.stroke = kind.colour,
          .stroke_width = std::min(1.3 + 0.7 * link.count, 5.0),
          .dashes = kind.dashes};
}

// The ranks of one host, where they are.
struct HostRanks {
  std::map<const Gpu*, Ints> by_gpu;
  std::vector<const RankPlan*> on_cpu;
  IntSet bound_cpus;
  int chip_rows = 0;
};

// Returns how many rows of chips a GPU with so many ranks needs.
int chip_rows(int ranks) {
  return ranks > kMostChips ? 1 : divided_up(ranks, kChipsInRow);
}

// Returns the GPU that is the device, or of which the device is an instance.
const Gpu* find_gpu(const Host& host, const DeviceAssignment& device) {
  return element_where(host.gpus, [&](const Gpu& gpu) { return gpu.has(device.uuid); });
}

using RanksByHost = std::map<std::string, std::vector<const RankPlan*>>;

// Without a plan no host has ranks.
RanksByHost ranks_by_host(const Plan* plan) {
  RanksByHost ranks;
  if (plan == nullptr)
    return ranks;
  for (const RankPlan& rank : plan->ranks)
    ranks[rank.host].push_back(&rank);
  return ranks;
}

// A rank of several GPUs is drawn on each of them.
HostRanks ranks_of(const Host& host, const std::vector<const RankPlan*>& ranks) {
  HostRanks result;
  for (const RankPlan* rank : ranks) {
    const Gpu* const gpu = rank->device.is_gpu() ? find_gpu(host, rank->device) : nullptr;
    if (gpu != nullptr) {
      result.by_gpu[gpu].push_back(rank->rank);
    } else {
      result.on_cpu.push_back(rank);
    }
    for (const DeviceAssignment& more : rank->more_devices) {
      if (const Gpu* const other = find_gpu(host, more))
        result.by_gpu[other].push_back(rank->rank);
    }
    if (rank->bind_cpus) {
      for (const int cpu : parse_cpu_list(rank->cpus))
        result.bound_cpus.insert(cpu);
    }
  }
  for (const auto& [gpu, list] : result.by_gpu)
    result.chip_rows = std::max(result.chip_rows, chip_rows(int_size(list)));
  return result;
}

// A GPU that is broken is shown so whether or not it has ranks.
const char* fill_of_gpu(bool is_sick, bool has_ranks) {
  if (is_sick)
    return "#ffe3e3";
  return has_ranks ? "#d3f9d8" : "#ffffff";
}

// The maker is left out: the box of a GPU is narrow.
std::string short_model(std::string model) {
  for (const std::string_view maker : {"NVIDIA ", "AMD ", "Tesla "}) {
    if (model.starts_with(maker))
      model.erase(0, maker.size());
  }
  return model;
}

// A card without a name goes by its PCI address, whose end tells more than its beginning.
std::string short_nic(const Nic& nic) {
  if (nic.name != nic.pci.value)
    return nic.name;
  return nic.name.substr(nic.name.find(':') + 1);
}

// Draws one host below `top`; `bottom` is then where the next may begin.
class HostPicture {
 public:
  HostPicture(SvgCanvas& canvas,
              const Host& host,
              const std::vector<const RankPlan*>& ranks,
              int top)
      : canvas_(canvas),
        host_(host),
        ranks_(ranks_of(host, ranks)),
        top_(top),
        layout_(lay_out_host(host, kMargin, top + header_height(), ranks_.chip_rows)),
        links_(route_links(host, layout_, layout_.box.bottom() + 14)) {}

  int width() const { return std::max({layout_.box.right(), chips_right_, 520}) + kMargin; }
  int bottom() const { return bottom_; }

  void draw() {
    draw_header();
    for (const SocketPlace& socket : layout_.sockets)
      draw_socket(socket);
    for (const NodePlace& node : layout_.nodes)
      draw_node(node);
    // Lines first, so that where one passes behind a bar it is the bar that is seen whole.
    for (const DrawnLink& drawn : links_.drawn)
      draw_lines(drawn);
    for (const DrawnLink& drawn : links_.drawn)
      draw_label(drawn);
    for (const GpuPlace& gpu : layout_.gpus)
      draw_gpu(gpu);
    bottom_ = draw_legend(links_.bottom + 12) + kMargin;
  }

 private:
  // Ranks on CPU slots need a line more.
  int header_height() const { return kHeader + (ranks_.on_cpu.empty() ? 0 : 24); }

  // The header says what the picture cannot: names, counts and the driver.
  void draw_header() {
    const auto title = cat("host ", host_.name);
    canvas_.text(kMargin, top_ + 18, fit_text(title, 60), kHostFont);
    auto facts = cat(plural(host_.gpus.size(), "GPU"), ", ", plural(host_.num_cores, "core"));
    if (!host_.driver_version.empty())
      facts += cat(", driver ", host_.driver_version);
    if (host_.gpus.empty() && !host_.gpu_note.empty())
      facts += cat("; ", host_.gpu_note);
    canvas_.text(kMargin, top_ + 36, fit_text(facts, 100), kFactsFont);
    draw_cpu_ranks();
  }

  // Ranks on CPU slots stand in the header; of many only the first.
  void draw_cpu_ranks() {
    constexpr int kMost = 5;
    for (const RankPlan* const rank : ranks_.on_cpu | std::views::take(kMost)) {
      const auto text = cat("rank ", rank->rank, ": ", rank->device.id());
      draw_cpu_chip(fit_text(text, 30), rank->reason);
    }
    const int more = int_size(ranks_.on_cpu) - kMost;
    if (more > 0)
      draw_cpu_chip(cat("and ", more, " more"), "");
  }

  // Draws the next chip of the header, right of the one before.
  void draw_cpu_chip(const std::string& text, const std::string& name) {
    const int x = chips_right_ == 0 ? kMargin : chips_right_ + 6;
    const int width = text_width(text, 10) + 12;
    draw_chip({x, top_ + kHeader, width, 17}, text, name);
    chips_right_ = x + width;
  }

  // The name is shown where the pointer rests; the text may have been cut.
  void draw_chip(const SvgBox& box, const std::string& text, const std::string& name) {
    canvas_.box(box, kChipBox, "rank", name);
    canvas_.text(box.middle(), box.y + 12, text, kChipFont);
  }

  // The box of a socket lies behind those of its nodes.
  void draw_socket(const SocketPlace& socket) {
    const SvgBox& box = socket.box;
    canvas_.box(box, kSocketBox, "socket");
    canvas_.text(box.x + 10, box.y + 17, cat("socket ", socket.socket), kSocketFont);
  }

  // A node's cores, NICs and PCIe groups lie one below the other.
  void draw_node(const NodePlace& node) {
    canvas_.box(node.box, kNodeBox, "numa");
    std::string title = numa_label(node.numa_node);
    const auto cores = std::ranges::count_if(
        host_.cores, [&](const CpuCore& core) { return core.numa_node == node.numa_node; });
    if (cores > 0)
      title += cat(", ", plural(cores, "core"));
    canvas_.text(node.box.x + 10, node.box.y + 16, title, {.bold = true});
    for (const CorePlace& core : node.cores)
      draw_core(core);
    for (const NicPlace& nic : node.nics)
      draw_nic(nic);
    for (const PciGroup& group : node.groups)
      draw_group(group);
  }

  // A core is filled when any of its hardware threads has a rank bound to it.
  void draw_core(const CorePlace& place) {
    const CpuCore& core = host_.cores[place.core];
    const bool bound = any_of(core.cpus, [&](int cpu) { return ranks_.bound_cpus.contains(cpu); });
    const SvgStyle style = {
        .fill = bound ? kRankFill : "#ffffff",
        .stroke = kCoreEdge,
    };
    canvas_.box(place.box, style, "core", cat("CPUs ", join(core.cpus, ",")));
  }

  // A group of one device is drawn without a box.
  void draw_group(const PciGroup& group) {
    if (group.drawn()) {
      const char* const title = group.several_switches ? "PCIe switches" : "PCIe switch";
      canvas_.box(group.box, kGroupBox, "pcie");
      canvas_.text(group.box.x + 8, group.box.y + 14, title, kGroupFont);
    }
    for (const NicPlace& nic : group.nics)
      draw_nic(nic);
  }

  // The whole name and the address are shown where the pointer rests.
  void draw_nic(const NicPlace& place) {
    const Nic& nic = host_.nics[place.nic];
    const SvgBox& box = place.box;
    const auto name = fit_text(short_nic(nic), chars_in(box.width - 4, 10));
    canvas_.box(box, kNicBox, "nic", cat(nic.name, " ", nic.pci.value));
    canvas_.text(box.middle(), box.y + 14, name, kNicFont);
  }

  // The box has a title and three lines; chips of ranks stand at its foot.
  void draw_gpu(const GpuPlace& place) {
    const Gpu& gpu = host_.gpus[place.gpu];
    const SvgBox& box = place.box;
    const Ints* const ranks = value_at(ranks_.by_gpu, &gpu);
    const bool is_sick = gpu.health != kHealthy;
    const SvgStyle style = {
        .fill = fill_of_gpu(is_sick, ranks != nullptr),
        .stroke = is_sick ? kRed : "#2b8a3e",
        .stroke_width = 1.5,
        .radius = 5,
    };
    canvas_.box(box, style, "gpu", cat(gpu.uuid.value, " ", gpu.pci.value, " ", gpu.model));
    canvas_.text(box.x + 8, box.y + 18, cat("GPU ", gpu.index.value), kGpuFont);
    if (gpu.memory_total_bytes > 0) {
      const auto memory = format_bytes(gpu.memory_total_bytes);
      canvas_.text(box.right() - 8, box.y + 18, memory, kMemoryFont);
    }
    draw_gpu_line(box, 1, short_model(gpu.model), kDark);
    draw_gpu_line(box, 2, text_or(gpu.pci.value, gpu.uuid.value), kGrey);
    draw_gpu_line(box, 3, remark(gpu), is_sick ? kRed : kGrey);
    if (ranks != nullptr)
      draw_ranks(box, *ranks);
  }

  // Row 0 is the title's.
  void draw_gpu_line(const SvgBox& gpu, int row, const std::string& text, const char* fill) {
    const auto fitting = fit_text(text, chars_in(gpu.width - 12, 11));
    canvas_.text(gpu.x + 8, gpu.y + 18 + row * 15, fitting, {.fill = fill});
  }

  static std::string remark(const Gpu& gpu) {
    if (gpu.health != kHealthy)
      return gpu.health;
    if (gpu.mig_enabled)
      return cat("MIG: ", plural(gpu.mig.size(), "instance"));
    return gpu.uuid.value.substr(0, 12);
  }

  // Chips stand in rows at the foot of every GPU's box, at one height over the host.
  void draw_ranks(const SvgBox& gpu, const Ints& ranks) {
    const int rows = ranks_.chip_rows;
    const int top = gpu.bottom() - rows * 20;
    if (std::ssize(ranks) > kMostChips) {
      const auto text = cat("ranks ", to_cpu_list(ranks));
      const auto fitting = fit_text(text, chars_in(gpu.width - 16, 10));
      draw_chip({gpu.x + 6, top, gpu.width - 12, 17}, fitting, text);
      return;
    }
    const int per_row = ranks.size() == 1 ? 1 : kChipsInRow;
    const int width = (gpu.width - 12 - (per_row - 1) * 4) / per_row;
    for (const int i : int_indices_of(ranks)) {
      const int x = gpu.x + 6 + i % per_row * (width + 4);
      const int y = top + i / per_row * 20;
      const auto text = cat("rank ", ranks[i]);
      draw_chip({x, y, width, 17}, fit_text(text, chars_in(width - 2, 10)), text);
    }
  }

  int foot_of(const LinkPort& port) const { return layout_.gpus[port.gpu].box.bottom(); }

  void draw_lines(const DrawnLink& drawn) {
    const SvgStyle style = line_style(drawn.link);
    const std::string name = to_string(drawn.link);
    if (!drawn.is_bar()) {
      canvas_.path(
          line_between(drawn, drawn.ports.front(), drawn.ports.back()), style, "link", name);
      return;
    }
    for (const LinkPort& port : drawn.ports)
      canvas_.path(cat("M", port.x, " ", foot_of(port), "V", drawn.y), style, "link", name);
  }

  // Leads down from the left GPU, to the right with round corners, and up to the right GPU.
  std::string line_between(const DrawnLink& drawn,
                           const LinkPort& left,
                           const LinkPort& right) const {
    constexpr int kCorner = 4;
    const auto down = cat("M", left.x, " ", foot_of(left), "V", drawn.y - kCorner);
    const auto first_corner = cat("q0 ", kCorner, " ", kCorner, " ", kCorner);
    const auto across = cat("H", right.x - kCorner);
    const auto second_corner = cat("q", kCorner, " 0 ", kCorner, " -", kCorner);
    return cat(down, first_corner, across, second_corner, "V", foot_of(right));
  }

  void draw_bar(const DrawnLink& drawn) {
    const std::string name = to_string(drawn.link);
    const SvgBox bar{drawn.left() - 12, drawn.y, drawn.right() - drawn.left() + 24, drawn.height};
    const char* const colour = style_of(drawn.link.kind).colour;
    const SvgStyle style = {
        .fill = "#ffffff",
        .stroke = colour,
        .stroke_width = 2,
        .radius = 6,
    };
    const SvgFont font = {
        .bold = true,
        .fill = colour,
        .align = SvgAlign::middle,
    };
    const std::string which = drawn.is_partial ? " GPUs where no nearer link is drawn" : " GPUs";
    const auto text = cat(name, " between any two of these ", drawn.ports.size(), which);
    canvas_.box(bar, style, "link", name);
    canvas_.text(drawn.middle(), bar.y + 14, text, font);
  }

  // A line has its name in the middle, on white.
  void draw_label(const DrawnLink& drawn) {
    if (drawn.is_bar())
      return draw_bar(drawn);
    const std::string name = to_string(drawn.link);
    const int middle = drawn.middle();
    const int width = text_width(name, 9) + 4;
    canvas_.box({middle - width / 2, drawn.y - 6, width, 12}, {.fill = "#ffffff"});
    const SvgFont font = {
        .size = 9,
        .fill = style_of(drawn.link.kind).colour,
        .align = SvgAlign::middle,
    };
    canvas_.text(middle, drawn.y + 3, name, font);
  }

  // Draws every kind of link that there is, with what it carries. Returns where the legend ends.
  int draw_legend(int y) {
    StringSet shown;
    for (const DrawnLink& drawn : links_.drawn) {
      if (!shown.insert(to_string(drawn.link)).second)
        continue;
      canvas_.path(cat("M", kMargin, " ", y, "h40"), line_style(drawn.link));
      canvas_.text(kMargin + 50, y + 4, legend_text(drawn));
      y += kLegendRow;
    }
    if (host_.gpus.size() > 1 && links_.drawn.empty()) {
      canvas_.text(kMargin, y + 4, "links between GPUs: not known", {.fill = kGrey});
      y += kLegendRow;
    }
    if (!ranks_.bound_cpus.empty() && !host_.cores.empty()) {
      canvas_.box({kMargin + 31, y - 5, 9, 9}, {.fill = kRankFill, .stroke = "#adb5bd"});
      canvas_.text(kMargin + 50, y + 4, "core that a rank is bound to");
      y += kLegendRow;
    }
    return y;
  }

  // Bandwidths are about: they come from data sheets (device/links.h).
  std::string legend_text(const DrawnLink& drawn) const {
    const Gpu& a = host_.gpus[layout_.gpus[drawn.ports.front().gpu].gpu];
    const Gpu& b = host_.gpus[layout_.gpus[drawn.ports.back().gpu].gpu];
    auto text = cat(to_string(drawn.link), ": ", style_of(drawn.link.kind).meaning);
    if (drawn.link.count > 0)
      text += cat(", ", plural(drawn.link.count, "link"));
    const double rate = link_bandwidth(a, b, drawn.link);
    if (rate > 0)
      text += cat(", about ", std::lround(rate), " GB/s each way");
    return text;
  }

  SvgCanvas& canvas_;
  const Host& host_;
  HostRanks ranks_;
  int top_;
  HostLayout layout_;
  LinkDrawing links_;
  int chips_right_ = 0;
  int bottom_ = 0;
};

}  // namespace

bool has_device(const Host& host, const DeviceAssignment& device) {
  return !device.is_gpu() || find_gpu(host, device) != nullptr;
}

// A plan's hosts are drawn in the inventory's order. With no rank anywhere, all hosts are.
std::string draw_svg(const Inventory& inventory, const Plan* plan, const SvgOptions& options) {
  RanksByHost ranks = ranks_by_host(plan);
  std::vector<const Host*> hosts;
  for (const Host& host : inventory.hosts) {
    if (ranks.empty() || ranks.contains(host.name))
      hosts.push_back(&host);
  }
  SvgCanvas canvas;
  int y = kMargin;
  int width = 200;
  const int most = std::max(options.max_hosts, 1);
  for (const Host* const host : hosts | std::views::take(most)) {
    HostPicture picture(canvas, *host, ranks[host->name], y);
    picture.draw();
    y = picture.bottom();
    width = std::max(width, picture.width());
  }
  const int more = int_size(hosts) - most;
  if (more > 0) {
    canvas.text(kMargin, y, cat("and ", plural(more, "more host")), {.size = 14, .bold = true});
    y += kMargin;
  }
  auto title = cat(hosts.size(), " hosts");
  if (hosts.size() == 1)
    title = cat("host ", hosts[0]->name);
  if (plan != nullptr)
    title += cat(", policy ", plan->policy);
  return canvas.finish(width, y, title);
}

std::string draw_svg(const Host& host, const Plan* plan) {
  return draw_svg(Inventory{.hosts = {host}}, plan);
}

}  // namespace muster
