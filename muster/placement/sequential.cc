// Local rank r gets GPU r % count of the selection: what most people mean.
#include "muster/base/strings.h"
#include "muster/placement/policy.h"

namespace muster {
namespace {

int capacity(const PolicyInput& input) {
  return static_cast<int>(input.gpus.size());
}

std::vector<PolicyChoice> choose(const PolicyInput& input, int num_ranks) {
  const size_t count = input.gpus.size();
  const std::string of =
      cat(" of ", count, input.request.gpus.empty() ? (count == 1 ? " GPU" : " GPUs") : " in --gpus ",
          input.request.gpus);
  std::vector<PolicyChoice> choices;
  choices.reserve(static_cast<size_t>(num_ranks));
  for (size_t rank = 0; rank < static_cast<size_t>(num_ranks); ++rank) {
    const size_t at = rank % count;
    choices.push_back({input.gpus[at], cat("sequential: ", at + 1, of)});
  }
  return choices;
}

}  // namespace

Policy sequential_policy() {
  return {"sequential", "local rank r on the r-th selected GPU", capacity, choose};
}

}  // namespace muster
