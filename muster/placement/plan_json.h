// A Plan as JSON, schema "muster.plan/1": plan.json in a run's folder, `muster plan --json`,
// MUSTER_PLAN. Values and text; no I/O.
#pragma once

#include <string>

#include "muster/placement/plan.h"

namespace muster {

// The whole plan, one rank a line, with a newline at the end. `model`: a member's JSON, which plans
// are read without (`muster plan --model`); empty: none.
std::string plan_to_json(const Plan& plan, const std::string& model = {});

// The plan in `text`; `source` (a file's name) is named in errors.
// Throws: invalid_argument naming the member when one is missing, unknown, of another type or out
// of range, and when ranks are not numbered 0, 1, 2 … host by host.
Plan plan_from_json(const std::string& text, const std::string& source);

}  // namespace muster
