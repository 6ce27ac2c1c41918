// Policies: which of a host's selected GPUs each of its ranks gets. A policy is a pair of pure functions, in
// a file of its own, named in the table of policy.cc. To add one: write `<name>.cc` with a function that
// returns its `Policy`, declare that below, add it to the table and to CMakeLists.txt, and test it in
// tests/placement/policy_test.cc. The planner calls them; a policy knows nothing of processes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/placement/request.h"
#include "muster/placement/usable_gpus.h"

namespace muster {

struct PolicyInput {
  const Host& host;
  const std::vector<UsableGpu>& gpus;  // selected, in the order of the selection; not empty
  const Request& request;
};

struct PolicyChoice {
  UsableGpu gpu;
  std::string reason;  // in plain words, beginning with the policy's name
};

struct Policy {
  const char* name;
  const char* summary;  // one line, for --help

  // How many ranks it places with no GPU used twice: also how many there are when the user gave no number.
  int (*capacity)(const PolicyInput& input);

  // A GPU for each of local ranks 0 … num_ranks-1. More than `capacity` are asked for only with
  // Surplus::share.
  std::vector<PolicyChoice> (*choose)(const PolicyInput& input, int num_ranks);
};

std::span<const Policy> policies();

// Throws: invalid_argument listing the names there are.
const Policy& find_policy(std::string_view name);

Policy sequential_policy();  // local rank % count
Policy list_policy();        // Request::map: local rank → GPU index

}  // namespace muster
