// Bandwidths come from data sheets and not from measurements: placement only compares links with
// each other, and has to do so for machines that are not there.
#include "muster/device/links.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

struct PciName {
  LinkKind kind;
  const char* name;
};

constexpr PciName kNames[] = {{LinkKind::unknown, "?"},
                              {LinkKind::self, "X"},
                              {LinkKind::pix, "PIX"},
                              {LinkKind::pxb, "PXB"},
                              {LinkKind::phb, "PHB"},
                              {LinkKind::node, "NODE"},
                              {LinkKind::sys, "SYS"}};

// One NVLink, one direction, in GB/s, by generation. Source: NVIDIA's whitepapers of P100 (20),
// V100, A100 and H100 (25 each; the newer have more links), and Blackwell (50).
constexpr std::array<double, 6> kNvlinkGbps = {0, 20, 25, 25, 25, 50};

// One Infinity Fabric link between MI200s and MI300s. Source: AMD's CDNA 2 whitepaper (50 GB/s a
// direction).
constexpr double kXgmiGbps = 50;

// One lane, one direction, after encoding, in GB/s, by PCIe generation. Source: PCI-SIG (2.5, 5, 8,
// 16, 32, 64 GT/s; 8b/10b up to 2, 128b/130b from 3, FLIT from 6).
constexpr std::array<double, 7> kPcieLaneGbps = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
constexpr int kUsualGeneration = 3;
constexpr int kUsualWidth = 16;

constexpr int kMaxLinks = 1024;  // between two devices, in a file that may be anything

// What is left of a slot's bandwidth the further apart the devices are: switches cost little, host
// bridges and the way between sockets more. Only their order matters to placement. Source: the
// order of NCCL's path types (PIX, PXB, PHB, SYS), with NODE between PHB and SYS.
constexpr std::pair<LinkKind, double> kPcieShares[] = {{LinkKind::pix, 1.0},
                                                       {LinkKind::pxb, 0.95},
                                                       {LinkKind::phb, 0.8},
                                                       {LinkKind::node, 0.7},
                                                       {LinkKind::sys, 0.5}};

// Returns what the GPU's slot carries in GB/s; a slot that nobody told of is a usual one.
double slot_bandwidth(const Gpu& gpu) {
  constexpr int kNewest = int_size(kPcieLaneGbps) - 1;
  const int generation = std::clamp(gpu.pcie_generation.value_or(kUsualGeneration), 1, kNewest);
  const int lanes = std::clamp(gpu.pcie_width.value_or(kUsualWidth), 1, 32);
  return kPcieLaneGbps[generation] * lanes;
}

// Returns the link whose name is `prefix` and the number of links: "NV4".
std::optional<Link> counted(std::string_view text, std::string_view prefix, LinkKind kind) {
  if (!text.starts_with(prefix))
    return std::nullopt;
  const auto count = parse_number(text.substr(prefix.size()), 1, kMaxLinks);
  if (!count)
    return std::nullopt;
  return Link{kind, *count};
}

// The least major number of a compute capability, or a piece of a model's name, and the generation
// of its NVLinks; the first that fits counts.
constexpr std::pair<int, int> kNvlinkCapabilities[] = {{10, 5}, {9, 4}, {8, 3}, {7, 2}, {6, 1}};
constexpr std::pair<const char*, int> kNvlinkModels[] = {{"GB200", 5},
                                                         {"GB300", 5},
                                                         {"B200", 5},
                                                         {"B300", 5},
                                                         {"H100", 4},
                                                         {"H200", 4},
                                                         {"H800", 4},
                                                         {"GH200", 4},
                                                         {"A100", 3},
                                                         {"A800", 3},
                                                         {"A30", 3},
                                                         {"A40", 3},
                                                         {"A6000", 3},
                                                         {"3090", 3},
                                                         {"V100", 2},
                                                         {"P100", 1}};

}  // namespace

LinkMatrix unknown_links(size_t count) {
  LinkMatrix links(count, std::vector<Link>(count));
  for (size_t i = 0; i < count; ++i)
    links[i][i].kind = LinkKind::self;
  return links;
}

// Only links of which there can be several have their number in the name.
std::string to_string(const Link& link) {
  if (link.kind == LinkKind::nvlink)
    return cat("NV", link.count);
  if (link.kind == LinkKind::xgmi)
    return cat("XGMI", link.count);
  const PciName* const entry = element_with(kNames, link.kind, &PciName::kind);
  return entry != nullptr ? entry->name : "?";
}

std::optional<Link> parse_link(std::string_view text) {
  if (const PciName* const entry = element_with(kNames, text, &PciName::name))
    return Link{entry->kind, 0};
  if (const auto link = counted(text, "NV", LinkKind::nvlink))
    return link;
  return counted(text, "XGMI", LinkKind::xgmi);
}

int nvlink_generation(const Gpu& gpu) {
  if (gpu.vendor != Vendor::nvidia)
    return 0;
  const auto major = parse_int(gpu.compute_capability.substr(0, gpu.compute_capability.find('.')));
  for (const auto& [least, generation] : kNvlinkCapabilities) {
    if (major && *major >= least)
      return generation;
  }
  for (const auto& [model, generation] : kNvlinkModels) {
    if (!major && has_text(gpu.model, model))
      return generation;
  }
  return 0;
}

std::optional<int> pcie_generation(std::string_view speed) {
  constexpr double kSpeeds[] = {2.5, 5, 8, 16, 32, 64};
  const auto place = index_with(kSpeeds, number_before_text(speed));
  return place ? std::optional(*place + 1) : std::nullopt;
}

const Link* gpu_link(const Host& host, size_t from, size_t to) {
  const LinkMatrix& links = host.gpu_links;
  return from < links.size() && to < links[from].size() ? &links[from][to] : nullptr;
}

double link_bandwidth(const Gpu& a, const Gpu& b, const Link& link) {
  if (link.kind == LinkKind::xgmi)
    return link.count * kXgmiGbps;
  if (link.kind == LinkKind::nvlink) {
    // A GPU with NVLink whose generation nobody told has the second at least.
    const int told = std::min(nvlink_generation(a), nvlink_generation(b));
    return link.count * kNvlinkGbps[told == 0 ? 2 : told];
  }
  return lookup(kPcieShares, link.kind, 0) * std::min(slot_bandwidth(a), slot_bandwidth(b));
}

}  // namespace muster
