// What the tests of the planner look at in a plan.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/planner.h"

namespace muster {

// "host:device" of each rank, e.g. "n0:2" or "n0:cpu1".
inline std::vector<std::string> devices(const Plan& plan) {
  std::vector<std::string> all;
  for (const RankPlan& rank : plan.ranks) {
    const bool cpu = rank.device.kind == DeviceAssignment::Kind::cpu;
    all.push_back(
        cat(rank.host, ":", cpu ? cat("cpu", rank.device.cpu_slot) : cat(rank.device.index.value)));
  }
  return all;
}

inline std::vector<int> ordinals(const Plan& plan) {
  std::vector<int> all;
  for (const RankPlan& rank : plan.ranks)
    all.push_back(rank.device.ordinal.value);
  return all;
}

inline std::string visible(const Plan& plan, size_t rank) {
  const auto variables = visibility_variables(plan, plan.ranks.at(rank));
  const auto found = variables.find("CUDA_VISIBLE_DEVICES");
  return found == variables.end() ? "untouched" : found->second.value_or("unset");
}

inline std::string error_of(const Inventory& inventory,
                            const Request& request,
                            ErrorCode code = ErrorCode::invalid_argument) {
  try {
    muster::plan(inventory, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace muster
