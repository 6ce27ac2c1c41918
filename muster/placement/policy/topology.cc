// The k GPUs with the best links among them, and the ranks in their order around the ring: the
// ring's slowest link as fast as it can be, then the sum of its links (ring.h). Ranks of several
// GPUs cut the ring where it is slowest. Without knowing the
// links there is nothing to choose by, and that is an error: whoever asks for this policy would not
// want to find out from a slow job.
#include <algorithm>
#include <string>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/device/links.h"
#include "muster/placement/policy/gpu_bandwidths.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/policy/ring.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

[[noreturn]] void fail_without_links(const PolicyInput& input,
                                     const std::string& expected,
                                     const std::string& got) {
  throw invalid_argument("--policy topology: expected ",
                         expected,
                         ", got ",
                         got,
                         " (host ",
                         input.host.name,
                         "); --policy sequential or numa needs no links");
}

// The matrix of links must be there, and square.
void check_links(const PolicyInput& input) {
  const LinkMatrix& links = input.host.gpu_links;
  const size_t count = input.host.gpus.size();
  const auto is_whole = [&](const std::vector<Link>& row) {
    return row.size() == count;
  };
  if (any_of(input.gpus, &UsableGpu::is_instance))
    fail_without_links(input, "whole GPUs", "MIG instances, which have no links");
  if (links.empty())
    fail_without_links(input, "to know the links between the GPUs", "none");
  if (links.size() != count || !all_of(links, is_whole)) {
    const auto expected = cat("a link for each two of ", plural(count, "GPU"));
    fail_without_links(input, expected, "another number");
  }
}

// A matrix in which nothing is known would make every ring as good as any other.
Bandwidths bandwidths(const PolicyInput& input) {
  Bandwidths all = gpu_bandwidths(input);
  if (fastest_link(all) == 0)
    fail_without_links(input, "to know the links between the GPUs", "no known link");
  return all;
}

// More ranks than GPUs go round the same ring again.
PolicyChoices choose_topology(const PolicyInput& input, int num_ranks) {
  const size_t count = std::min<size_t>(num_ranks, input.gpus.size());
  if (count == 1) {
    return in_turn({input.gpus[0]}, num_ranks, [](size_t) { return "topology: one GPU, no link"; });
  }
  check_links(input);
  const Bandwidths all = bandwidths(input);
  const Indices ring = turned_to_groups(all, best_ring(all, count), input.request.gpus_per_rank);
  const auto slowest = gigabytes(ring_quality(all, ring).slowest);
  return in_turn(gpus_in_order(input, ring), num_ranks, [&](size_t place) {
    const size_t here = ring[place];
    const size_t next = ring[(place + 1) % count];
    const UsableGpu& gpu = input.gpus[next];
    return cat("topology: next ",
               label_of(input.host, gpu),
               " by ",
               to_string(*link_between(input, input.gpus[here], gpu)),
               " ",
               gigabytes(all[here][next]),
               ", slowest of the ring ",
               slowest);
  });
}

}  // namespace

Policy topology_policy() {
  return {
      "topology", "the best linked GPUs, ranks in ring order", one_rank_per_gpu, choose_topology};
}

}  // namespace muster
