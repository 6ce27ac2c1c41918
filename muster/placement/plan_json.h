// A Plan as JSON, schema "muster.plan/1": plan.json in a run's folder, `muster plan --json`,
// MUSTER_PLAN. Values and text; no I/O.
#pragma once

#include <string>
#include <vector>

#include "muster/placement/plan.h"

namespace muster {

// The whole plan, one rank a line, with a newline at the end. `model`: a member's JSON, which plans
// are read without (`muster plan --model`); empty: none.
std::string plan_to_json(const Plan& plan, const std::string& model = {});

// One host's ranks, and their place in a plan.
struct HostRanks {
  int host_index = 0;
  int first_rank = 0;
  int hosts_before = 0;  // with ranks
  std::vector<RankPlan> ranks{};
};

// In one line. Throws: as plan_from_json.
std::string host_ranks_to_json(const HostRanks& host);
HostRanks host_ranks_from_json(const std::string& text, const std::string& source);

// The plan in `text`; `source` (a file's name) is named in errors.
// Throws: invalid_argument naming the member when one is missing, unknown, of another type or out
// of range, and when ranks are not numbered 0, 1, 2 … host by host.
Plan plan_from_json(const std::string& text, const std::string& source);

}  // namespace muster
