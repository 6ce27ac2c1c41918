// The rules for a job's settings. The flags of `muster run` and the RunOptions of a program that
// starts itself become the same LaunchOptions, so each rule stands here once. What needs a look at
// the machine is the planner's (placement/checked_request.h).
#pragma once

#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/launch/launch.h"

namespace muster {

// Everything that can be found wrong without looking at the machine is found before anything is
// started. Throws: invalid_argument, naming the flag.
void check_launch(const LaunchOptions& options);

// For the request of a user, whose hosts are all named there or are one: plans that are made anew
// may have fewer ranks. Throws: invalid_argument where --rank-memory has more sizes than a host has
// ranks, as far as a number of them is told.
void check_sizes_have_ranks(const Request& request);

// "OMP_NUM_THREADS": letters, digits and '_', no digit first.
bool is_variable_name(const std::string& name);

// Whether muster itself sets the variable for each rank, so that nobody else may.
bool is_set_for_ranks(const std::string& name);

// Sets what happens when a rank fails. `max_restarts`: nothing where nobody has said it, which
// means more with `replace`.
void set_failure_policy(FailurePolicy policy,
                        std::optional<int> max_restarts,
                        LaunchOptions& options);

// Sets how long the ranks' collectives wait, which with `replace` is also the others' time to join
// again. `told`: nothing where only MUSTER_COLLECTIVE_TIMEOUT may say it, which the ranks inherit.
// Throws: invalid_argument for a malformed variable.
void set_collective_timeout(OptionalDuration told, LaunchOptions& options);

}  // namespace muster
