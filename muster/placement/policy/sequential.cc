// Local rank r gets GPU r % count of the selection: what most people mean.
#include "muster/base/strings.h"

#include <string>

#include "muster/placement/policy/policy.h"

namespace muster {
namespace {

// Every rank's reason has the selection, so the beginning of a long one is enough.
std::string beginning_of_selection(const std::string& selection) {
  constexpr size_t kMostShown = 80;
  if (selection.size() <= kMostShown)
    return selection;
  const size_t end = selection.find_last_of(',', kMostShown);
  return end == npos ? "…" : selection.substr(0, end) + ",…";
}

PolicyChoices choose_sequential(const PolicyInput& input, int num_ranks) {
  const size_t count = input.gpus.size();
  const Selection& selection = input.request.gpus;
  auto all = plural(count, "GPU");
  if (!selection.is_all())
    all = cat(count, " in --gpus ", beginning_of_selection(selection.text));
  return in_turn(input.gpus, num_ranks, [&](size_t place) {
    return cat("sequential: ", place + 1, " of ", all);
  });
}

}  // namespace

Policy sequential_policy() {
  return {
      "sequential", "local rank r on the r-th selected GPU", one_rank_per_gpu, choose_sequential};
}

}  // namespace muster
