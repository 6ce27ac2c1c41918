#include "muster/placement/plan.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/placement/planner.h"
#include "muster/placement/request.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

TEST(Plan, NamesOfVisibilitiesAndSurplusRules) {
  for (const auto value :
       {Visibility::job, Visibility::own, Visibility::own_first, Visibility::all}) {
    EXPECT_EQ(parse_visibility(to_string(value)), value);
  }
  EXPECT_STREQ(to_string(Visibility::own_first), "own-first");
  for (const auto value : {Surplus::error, Surplus::cpu, Surplus::drop, Surplus::share}) {
    EXPECT_EQ(parse_surplus(to_string(value)), value);
  }
  try {
    parse_surplus("ignore");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--surplus: expected one of error, cpu, drop, share, got 'ignore'");
  }
  EXPECT_THROW(parse_visibility("own_first"), Error);
  EXPECT_THROW(parse_visibility(""), Error);
}

TEST(Plan, RanksOnAHost) {
  const Plan plan = muster::plan(machine({2, 0, 3}), {});
  EXPECT_EQ(ranks_on_host(plan, 0).count, 2);
  EXPECT_EQ(ranks_on_host(plan, 1).count, 0);
  EXPECT_EQ(ranks_on_host(plan, 2).first, 2);
  EXPECT_EQ(ranks_on_host(plan, 2).count, 3);
  EXPECT_EQ(ranks_on_host(plan, 7).count, 0);
}

}  // namespace
}  // namespace muster
