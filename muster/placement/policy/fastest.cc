// The fastest GPUs first, by Request::scores; equally fast ones in the order of the selection,
// which is the index unless the user gave another.
#include <algorithm>
#include <functional>

#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/scores.h"

namespace muster {
namespace {

PolicyChoices choose_fastest(const PolicyInput& input, int num_ranks) {
  const auto scores = mapped(input.gpus, [&](const UsableGpu& gpu) {
    return need_score(input.request.scores, input.host, gpu, "--policy fastest");
  });
  Indices order = numbers_below(scores.size());
  std::ranges::stable_sort(order, std::greater(), [&](size_t gpu) { return scores[gpu]; });
  return in_turn(gpus_in_order(input, order), num_ranks, [&](size_t place) {
    return cat("fastest: score ", scores[order[place]], ", ", place + 1, " of ", order.size());
  });
}

}  // namespace

Policy fastest_policy() {
  return {"fastest", "the GPUs with the highest --scores first", one_rank_per_gpu, choose_fastest};
}

}  // namespace muster
