// Ranks are counted by device. Their memory is added up in the order of the ranks, so that the
// first one that finds too little is the one that is named.
#include "muster/placement/shared_gpus.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/placement/policy/rank_memory.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

// The rank that finds too little left on a device, and what it finds.
struct ShortRank {
  const UsableGpu& device;
  int local_rank;
  uint64_t left;
};

[[noreturn]] void fail_with_little_memory(const Policy& policy,
                                          const PolicyInput& input,
                                          const ShortRank& rank) {
  const bool is_known = knows_memory(input.host, rank.device);
  const char* const next_step =
      is_known ? "--policy memory looks for one that has it"
               : "leave --rank-memory out, or plan for a file (--inventory) that says the GPU's "
                 "memory";
  const Strings texts =
      format_compared_bytes({rank_memory_need(input.request, rank.local_rank), rank.left});
  throw invalid_argument("--rank-memory: expected ",
                         texts[0],
                         " free for local rank ",
                         rank.local_rank,
                         " of host ",
                         input.host.name,
                         ", got ",
                         is_known ? texts[1] : "not known",
                         " on ",
                         label_of(input.host, rank.device),
                         ", which policy ",
                         policy.name,
                         " gives it; ",
                         next_step);
}

}  // namespace

Sharers sharers_of(const PolicyChoices& choices) {
  Sharers sharers;
  int local_rank = 0;
  for (const PolicyChoice& choice : choices)
    sharers[device_key(choice.gpu)].push_back(local_rank++);
  return sharers;
}

// Sharing a GPU must be asked for, since it is mostly a mistake.
void check_sharing(const Policy& policy, const PolicyInput& input, const Sharers& sharers) {
  const auto* const shared =
      element_where(sharers, [](const auto& entry) { return entry.second.size() > 1; });
  if (shared == nullptr || input.request.surplus == Surplus::share)
    return;
  const auto& [device, ranks] = *shared;
  const bool by_function = policy.name == std::string_view("list") && input.request.choose;
  throw invalid_argument(by_function ? "Request::choose" : cat("--policy ", policy.name),
                         ": expected a GPU of its own for each rank, got GPU ",
                         input.host.gpus[device.first].index.value,
                         " for local ranks ",
                         join(ranks, " and "),
                         " of host ",
                         input.host.name,
                         "; --surplus share allows it");
}

void check_rank_memory(const Policy& policy, const PolicyInput& input, const Sharers& sharers) {
  if (input.request.rank_memory_bytes.empty())
    return;
  for (const auto& [key, ranks] : sharers) {
    const UsableGpu device{key.first, {}, key.second};
    uint64_t left = free_memory_bytes(input.host, device);
    for (const int rank : ranks) {
      const uint64_t need = rank_memory_need(input.request, rank);
      if (need > left)
        fail_with_little_memory(policy, input, {device, rank, left});
      left -= need;
    }
  }
}

}  // namespace muster
