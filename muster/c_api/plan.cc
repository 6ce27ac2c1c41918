// Plans, as JSON and as tables.
#include <nlohmann/json.hpp>
#include <string>

#include "muster/base/error.h"
#include "muster/base/json_member.h"
#include "muster/base/strings.h"
#include "muster/c_api.h"
#include "muster/c_api/answer.h"
#include "muster/c_api/plan_request.h"
#include "muster/device/inventory_json.h"
#include "muster/launch/job_plan.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"

namespace muster {

namespace {

std::string make_plan(const char* request) {
  const LaunchOptions options = plan_request(request);
  const Inventory inventory = discover(options);
  const Plan plan = place(inventory, options);
  return cat("{\"table\": ",
             json_text(nlohmann::json(plan_table(plan))),
             ",\n\"plan\": ",
             plan_to_json(plan),
             ",\n\"devices\": ",
             inventory_to_json(inventory),
             "}\n");
}

}  // namespace

}  // namespace muster

extern "C" {

int muster_plan(const char* request, char** json) {
  return muster::answer_text(json, [&] { return muster::make_plan(request); });
}

int muster_plan_table(const char* plan, char** text) {
  return muster::answer_text(text, [&] {
    return muster::plan_table(muster::plan_from_json(plan == nullptr ? "" : plan, "the plan"));
  });
}

}  // extern "C"
