// An explicit list: local rank r gets the GPU whose index stands at place r of Request::map, or of
// what Request::choose gives for the host. Of a GPU that is split by MIG, the n-th mention is its
// n-th instance.
#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/device/numbers.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

// Errors name what the user wrote the list with.
const char* origin(const PolicyInput& input) {
  if (input.request.map_of)
    return "--map-command";
  return input.request.choose ? "Request::choose" : "--map";
}

// Returns each GPU's index once, though a GPU that is split stands in the list with each instance.
Ints gpu_indices(const PolicyInput& input) {
  Ints indices;
  for (const UsableGpu& gpu : input.gpus) {
    const int index = gpu_of(input.host, gpu).index.value;
    if (indices.empty() || indices.back() != index)
      indices.push_back(index);
  }
  return indices;
}

std::optional<int> ranks_asked_for(const PolicyInput& input) {
  for (const HostRequest& host : input.request.hosts) {
    if (host.name == input.host.name && host.nproc)
      return host.nproc;
  }
  return input.request.nproc_per_node;
}

Ints map_for(const PolicyInput& input) {
  if (!input.request.map_of)
    return input.request.map;
  return input.request.map_of(input.host, gpu_indices(input), ranks_asked_for(input));
}

// A list places as many ranks as it is long; a function is told how many there are.
int list_capacity(const PolicyInput& input) {
  if (input.request.choose)
    return one_rank_per_gpu(input);
  const Ints map = map_for(input);
  if (map.empty()) {
    throw invalid_argument(
        "--policy list: expected a GPU index for each rank, got none; give --map 3,1,0,2");
  }
  return int_size(map);
}

[[noreturn]] void fail_index(const PolicyInput& input, int index, size_t place) {
  throw invalid_argument(origin(input),
                         ": expected a GPU of host ",
                         input.host.name,
                         " that can be used (",
                         join(gpu_indices(input), ", "),
                         "), got ",
                         index,
                         " at place ",
                         place + 1);
}

// Returns the device for one place of the map. `mentions` counts how often each index was asked for
// before.
UsableGpu gpu_at(const PolicyInput& input,
                 int index,
                 size_t place,
                 std::map<int, size_t>& mentions) {
  const auto has_index = [&](const UsableGpu& gpu) {
    return gpu_of(input.host, gpu).index.value == index;
  };
  const auto found = filtered(input.gpus, has_index);
  if (found.empty())
    fail_index(input, index, place);
  return found[mentions[index]++ % found.size()];
}

Ints indices_for(const PolicyInput& input, int num_ranks) {
  if (!input.request.choose)
    return map_for(input);
  return input.request.choose(input.host, num_ranks);
}

// Every rank's reason has the map, so the beginning of a long one is enough.
std::string beginning_of_map(const Ints& map) {
  constexpr size_t kMostShown = 16;
  const auto shown = std::span(map).first(std::min(map.size(), kMostShown));
  return cat(join(shown, ","), map.size() > kMostShown ? ",…" : "");
}

PolicyChoices choose_list(const PolicyInput& input, int num_ranks) {
  const Ints map = indices_for(input, num_ranks);
  // A map may be gone round by --surplus share; a function was told how many are wanted.
  const int count = int_size(map);
  const bool fits = input.request.choose ? num_ranks == count : num_ranks >= count;
  if (map.empty() || !fits) {
    throw invalid_argument(origin(input),
                           ": expected ",
                           num_ranks,
                           " GPU ",
                           word_for(num_ranks, "index", "indices"),
                           ", one for each ",
                           word_for(input.request.gpus_per_rank, "rank", "GPU of the ranks"),
                           " of host ",
                           input.host.name,
                           ", got ",
                           count,
                           "; give as many of one as of the other");
  }
  const std::string of =
      input.request.choose ? "what Request::choose gave" : cat("--map ", beginning_of_map(map));
  std::map<int, size_t> mentions;
  PolicyChoices choices;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int place = rank % count;
    choices.push_back(
        {gpu_at(input, map[place], place, mentions), cat("list: place ", place + 1, " of ", of)});
  }
  return choices;
}

}  // namespace

Policy list_policy() {
  return {.name = "list",
          .summary = "local rank r on the r-th GPU of --map",
          .capacity = list_capacity,
          .choose = choose_list,
          .places = "listed GPU"};
}

}  // namespace muster
