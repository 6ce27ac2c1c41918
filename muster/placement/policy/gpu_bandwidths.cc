// The links of the host's matrix, of which each has a bandwidth (device/links.h). Bandwidths are
// compared in whole MB/s, so that sums are exact.
#include "muster/placement/policy/gpu_bandwidths.h"

#include <algorithm>
#include <cmath>

#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/device/links.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

constexpr double kMegaPerGiga = 1000;

// Returns what goes from `a` to `b`. Units: GB/s.
double carried(const PolicyInput& input, const UsableGpu& a, const UsableGpu& b) {
  const Link* const link = link_between(input, a, b);
  return link == nullptr ? 0 : link_bandwidth(gpu_of(input.host, a), gpu_of(input.host, b), *link);
}

}  // namespace

const Link* link_between(const PolicyInput& input, const UsableGpu& a, const UsableGpu& b) {
  const bool are_whole = !a.is_instance() && !b.is_instance();
  return are_whole ? gpu_link(input.host, a.position, b.position) : nullptr;
}

Bandwidths gpu_bandwidths(const PolicyInput& input) {
  const auto& gpus = input.gpus;
  Bandwidths all(gpus.size(), Int64s(gpus.size()));
  for (const size_t a : indices_of(gpus)) {
    for (size_t b = 0; b < a; ++b) {
      const double slower =
          std::min(carried(input, gpus[a], gpus[b]), carried(input, gpus[b], gpus[a]));
      all[a][b] = all[b][a] = std::llround(slower * kMegaPerGiga);
    }
  }
  return all;
}

std::string gigabytes(int64_t megabytes) {
  return cat(static_cast<double>(megabytes) / kMegaPerGiga, " GB/s");
}

}  // namespace muster
