// The GPUs of a host in the order that a mesh of ranks wants: neighbours along the last axis on the
// fastest links. Which coordinates a rank has is its number's business (base/mesh_shape.h), so only
// the order of GPUs is chosen here. Where no links are known, or ranks share GPUs, the order is the
// selection's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/placement/policy/mesh_order.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

constexpr double kMegaOfGiga = 1000;

// Returns how much of each axis lies within a host of `num_ranks` ranks; the last axis first gets
// what it needs. Ranks that no axis takes make an axis of their own before the others.
Ints sizes_in_host(const std::vector<MeshAxis>& axes, int num_ranks) {
  Ints sizes(axes.size(), 1);
  for (size_t axis = axes.size(); axis-- > 0 && num_ranks > 1;) {
    const int size = axes[axis].size < 1 ? num_ranks : axes[axis].size;
    sizes[axis] = std::gcd(size, num_ranks);
    num_ranks /= sizes[axis];
    if (sizes[axis] != size)
      break;
  }
  if (num_ranks > 1)
    sizes.insert(sizes.begin(), num_ranks);
  return sizes;
}

// Returns the link between two whole GPUs; null when it is not known, or one is an instance.
const Link* mesh_link(const PolicyInput& input, const UsableGpu& a, const UsableGpu& b) {
  const LinkMatrix& links = input.host.gpu_links;
  const bool are_whole = !a.is_instance() && !b.is_instance();
  const bool is_known = a.position < links.size() && b.position < links[a.position].size();
  return are_whole && is_known ? &links[a.position][b.position] : nullptr;
}

// Returns the bandwidths in whole MB/s, 0 where no link is known; of the two directions the slower.
Bandwidths mesh_bandwidths(const PolicyInput& input) {
  const size_t count = input.gpus.size();
  Bandwidths all(count, std::vector<int64_t>(count));
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      const Link* const link = a == b ? nullptr : mesh_link(input, input.gpus[a], input.gpus[b]);
      if (link == nullptr)
        continue;
      const double carries = link_bandwidth(
          gpu_of(input.host, input.gpus[a]), gpu_of(input.host, input.gpus[b]), *link);
      all[a][b] = std::llround(carries * kMegaOfGiga);
    }
  }
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < a; ++b)
      all[a][b] = all[b][a] = std::min(all[a][b], all[b][a]);
  }
  return all;
}

bool any_link(const Bandwidths& all) {
  return any_of(all, [](const auto& row) { return std::ranges::max(row) > 0; });
}

// Says the way to the next GPU on the last axis that lies in the host: "mesh: along tp GPU 1 by
// NV18 450 GB/s".
std::string reason_of(const PolicyInput& input,
                      const Bandwidths& all,
                      const Ints& sizes,
                      const Indices& order,
                      size_t place) {
  const auto& axes = input.request.mesh;
  size_t stride = 1;
  for (size_t axis = sizes.size(); axis-- > 0; stride *= sizes[axis]) {
    const size_t size = sizes[axis];
    if (size == 1)
      continue;
    const size_t along = place / stride % size;
    const size_t next = place - along * stride + (along + 1) % size * stride;
    const UsableGpu& gpu = input.gpus[order[next]];
    const size_t named = axis + axes.size();
    const std::string name =
        named >= sizes.size() ? axes[named - sizes.size()].name : "the ranks left";
    const std::string along_axis = cat("mesh: along ", name, " ", label_of(input.host, gpu));
    const Link* const link = mesh_link(input, input.gpus[order[place]], gpu);
    if (link == nullptr)
      return cat(along_axis, ", no link known");
    const auto megabytes = static_cast<double>(all[order[place]][order[next]]);
    return cat(along_axis, " by ", to_string(*link), " ", megabytes / kMegaOfGiga, " GB/s");
  }
  return "mesh: alone on its host";
}

// The order depends on these numbers alone, and a job's hosts are of few kinds: each is searched
// once. Of more kinds the map begins anew.
Indices order_of_kind(const Bandwidths& all, const Ints& sizes) {
  constexpr size_t kMostKinds = 64;
  static thread_local std::map<std::pair<Bandwidths, Ints>, Indices> known;
  const auto kind = std::pair(all, sizes);
  if (const auto found = known.find(kind); found != known.end())
    return found->second;
  if (known.size() == kMostKinds)
    known.clear();
  return known.emplace(kind, best_mesh_order(all, sizes)).first->second;
}

// Ranks that share GPUs get them in turn, since an order of GPUs says nothing of them.
std::vector<PolicyChoice> choose_mesh(const PolicyInput& input, int num_ranks) {
  const Bandwidths all = mesh_bandwidths(input);
  const bool share = num_ranks > int_size(input.gpus);
  if (share || !any_link(all)) {
    const char* const reason = share ? "mesh: in order, since ranks share GPUs"
                                     : "mesh: in order, since no links are known";
    return in_turn(input.gpus, num_ranks, [&](size_t) { return reason; });
  }
  const auto sizes = sizes_in_host(input.request.mesh, num_ranks);
  const auto order = order_of_kind(all, sizes);
  return in_turn(gpus_in_order(input, order), num_ranks, [&](size_t place) {
    return reason_of(input, all, sizes, order, place);
  });
}

}  // namespace

Policy mesh_policy() {
  return {"mesh",
          "neighbours on the last axes of --mesh on the best links",
          one_rank_per_gpu,
          choose_mesh};
}

}  // namespace muster
