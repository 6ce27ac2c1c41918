// Policies: which of a host's selected devices each of its ranks gets. A policy is a set of pure
// functions in a file of its own, listed in the table of policy.cc. The planner calls them, host by
// host; a policy knows nothing of processes. To add one: write `<name>.cc` with a function that
// returns its `Policy`, declare it below, add it to the table and to CMakeLists.txt, and test it in
// tests/placement/policy/policy_test.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/lists.h"
#include "muster/device/inventory.h"
#include "muster/placement/request.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {

struct PolicyInput {
  const Host& host;
  const std::vector<UsableGpu>& gpus;  // selected, in the order of the selection; not empty
  const Request& request;
};

struct PolicyChoice {
  UsableGpu gpu;
  std::string reason;  // in plain words, starting with the policy's name
};
using PolicyChoices = std::vector<PolicyChoice>;

struct Policy {
  const char* name;
  const char* summary;  // one line, for --help

  // The number of ranks it can place without using a GPU twice; also the default number of ranks.
  int (*capacity)(const PolicyInput& input);

  // Returns a GPU for each of local ranks 0 … num_ranks-1. num_ranks exceeds `capacity` only with
  // Surplus::share.
  PolicyChoices (*choose)(const PolicyInput& input, int num_ranks);

  // Why `num_ranks`, more than `capacity`, are too many, for error messages. Null: too few GPUs.
  std::string (*why_too_many)(const PolicyInput& input, int num_ranks) = nullptr;

  // What `capacity` counts, for messages.
  const char* places = "GPU";
};

std::span<const Policy> policies();

// Throws: invalid_argument listing the known names.
const Policy& find_policy(std::string_view name);

// One rank per device: the capacity of every policy that can use all of them.
int one_rank_per_gpu(const PolicyInput& input);

// The selected devices at these places of PolicyInput::gpus.
std::vector<UsableGpu> gpus_in_order(const PolicyInput& input, const Indices& places);

// Puts local rank r on order[r % count], with reason(index in `order`).
template <class Reason>
PolicyChoices in_turn(const std::vector<UsableGpu>& order, int num_ranks, const Reason& reason) {
  PolicyChoices choices;
  choices.reserve(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const size_t place = rank % order.size();
    choices.push_back({order[place], reason(place)});
  }
  return choices;
}

Policy sequential_policy();  // local rank % count
Policy list_policy();        // Request::map or Request::choose: local rank → GPU index
Policy fastest_policy();     // Request::scores, highest first
Policy memory_policy();      // Request::rank_memory_bytes, best fit decreasing
Policy topology_policy();    // the ring with the best links
Policy spread_policy();      // over NUMA nodes and switches, least loaded first
Policy pack_policy();        // fewest NUMA nodes, most used first
Policy numa_policy();        // ranks grouped by NUMA node
Policy mesh_policy();        // Request::mesh: neighbours on the last axes on the best links

}  // namespace muster
