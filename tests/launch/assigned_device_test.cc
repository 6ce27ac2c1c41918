#include "muster/launch/assigned_device.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_part.h"
#include "muster/placement/planner.h"
#include "tests/device/scratch.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

// A rank's file of a job of several hosts is its host's part.
TEST(AssignedDevice, ARankFindsItselfInItsHostsPart) {
  const Plan whole = plan(machine({2, 2}), {.global_batch = 10});
  Plan part = part_without_ranks(whole);
  part.ranks = {whole.ranks.begin() + 2, whole.ranks.end()};
  part.part->first_rank = 2;
  const ScratchFolder folder;
  const std::string path = folder.path() + "/part.json";
  write_file(path, plan_to_json(part));
  const auto found =
      assigned_device({.rank = 3, .world_size = 4, .local_rank = 1, .plan = path}, Surplus::error);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->assignment, whole.ranks[3]);
  EXPECT_EQ(found->ordinal, whole.ranks[3].device.ordinal);
  EXPECT_EQ(found->batch_shares, batch_shares_in(whole));
  for (const int elsewhere : {1, 4})
    EXPECT_THROW(assigned_device({.rank = elsewhere, .plan = path}, Surplus::error), Error);
}

}  // namespace
}  // namespace muster
