// An explicit list: local rank r gets the GPU whose index stands at place r of Request::map.
#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/policy.h"

namespace muster {
namespace {

int capacity(const PolicyInput& input) {
  if (input.request.map.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "--policy list: expected a GPU index for each rank, got none; give --map 3,1,0,2");
  }
  return static_cast<int>(input.request.map.size());
}

UsableGpu gpu_at(const PolicyInput& input, size_t place) {
  const int index = input.request.map[place];
  std::vector<int> selected;
  for (const UsableGpu& gpu : input.gpus) {
    selected.push_back(input.host.gpus[gpu.position].index.value);
    if (selected.back() == index) return gpu;
  }
  throw Error(ErrorCode::invalid_argument,
              cat("--map: expected a GPU of host ", input.host.name, " that can be used (",
                  join(selected, ", "), "), got ", index, " at place ", place + 1));
}

std::vector<PolicyChoice> choose(const PolicyInput& input, int num_ranks) {
  const auto& map = input.request.map;
  if (static_cast<size_t>(num_ranks) < map.size()) {
    throw Error(ErrorCode::invalid_argument,
                cat("--map: expected ", num_ranks, " GPU ", num_ranks == 1 ? "index" : "indices",
                    ", one for each rank of host ", input.host.name, ", got ", map.size()));
  }
  std::vector<PolicyChoice> choices;
  for (size_t rank = 0; rank < static_cast<size_t>(num_ranks); ++rank) {
    const size_t place = rank % map.size();
    choices.push_back({gpu_at(input, place), cat("list: place ", place + 1, " of --map ", join(map, ","))});
  }
  return choices;
}

}  // namespace

Policy list_policy() {
  return {"list", "local rank r on the r-th GPU of --map", capacity, choose};
}

}  // namespace muster
