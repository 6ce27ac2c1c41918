// The GPUs of a host in the order that a mesh of ranks wants: neighbours along the last axis on the
// fastest links. Which coordinates a rank has is its number's business (base/mesh_shape.h), so only
// the order of GPUs is chosen here. Where no links are known, or ranks share GPUs, the order is the
// selection's.
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/placement/policy/gpu_bandwidths.h"
#include "muster/placement/policy/mesh_order.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

// Returns how much of each axis lies within a host of `num_ranks` ranks; the last axis first gets
// what it needs. Ranks that no axis takes make an axis of their own before the others.
Ints sizes_in_host(const MeshAxes& axes, int num_ranks) {
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
    const auto along_axis = cat("mesh: along ", name, " ", label_of(input.host, gpu));
    const Link* const link = link_between(input, input.gpus[order[place]], gpu);
    if (link == nullptr)
      return cat(along_axis, ", no link known");
    return cat(
        along_axis, " by ", to_string(*link), " ", gigabytes(all[order[place]][order[next]]));
  }
  return "mesh: alone on its host";
}

// The order depends on these numbers alone, and a job's hosts are of few kinds: each is searched
// once. Of more kinds the map begins anew.
Indices order_of_kind(const Bandwidths& all, const Ints& sizes) {
  constexpr size_t kMostKinds = 64;
  static thread_local std::map<std::pair<Bandwidths, Ints>, Indices> known;
  const auto kind = std::pair(all, sizes);
  if (const Indices* const found = value_at(known, kind))
    return *found;
  if (known.size() == kMostKinds)
    known.clear();
  return known.emplace(kind, best_mesh_order(all, sizes)).first->second;
}

// Ranks that share GPUs get them in turn, since an order of GPUs says nothing of them.
PolicyChoices choose_mesh(const PolicyInput& input, int num_ranks) {
  const Bandwidths all = gpu_bandwidths(input);
  const bool share = num_ranks > int_size(input.gpus);
  if (share || fastest_link(all) == 0) {
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
