// Which GPUs the ranks of a plan see, and by which number each has its own.
#include "muster/placement/planner.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "tests/placement/machines.h"
#include "tests/placement/plans.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Inventory with_amd(int num_nvidia, int num_amd) {
  Inventory inventory = machine({num_nvidia + num_amd});
  for (int i = num_nvidia; i < num_nvidia + num_amd; ++i) {
    inventory.hosts[0].gpus[static_cast<size_t>(i)].vendor = Vendor::amd;
  }
  return inventory;
}

TEST(Planner, VisibilityOwn) {
  const Plan plan = muster::plan(machine({3}), {.gpus = "2,0", .visibility = Visibility::own});
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 0));
  EXPECT_EQ(visible(plan, 0), test_uuid(0, 2));
  EXPECT_EQ(visible(plan, 1), test_uuid(0, 0));
}

TEST(Planner, VisibilityOwnFirst) {
  const Plan plan = muster::plan(machine({3}), {.visibility = Visibility::own_first});
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 0, 0));
  EXPECT_EQ(visible(plan, 1), cat(test_uuid(0, 1), ",", test_uuid(0, 0), ",", test_uuid(0, 2)));
  const Plan shared = muster::plan(
      machine({2}),
      {.nproc_per_node = 4, .surplus = Surplus::share, .visibility = Visibility::own_first});
  EXPECT_EQ(shared.visibility, Visibility::own_first) << "what was asked for stands";
  EXPECT_EQ(visible(shared, 3), cat(test_uuid(0, 1), ",", test_uuid(0, 0))) << "no UUID twice";
}

TEST(Planner, VisibilityAll) {
  const Plan plan = muster::plan(machine({4}), {.gpus = "3,1", .visibility = Visibility::all});
  EXPECT_THAT(ordinals(plan), ElementsAre(3, 1))
      << "as a process with an untouched environment counts";
  EXPECT_EQ(visible(plan, 0), "untouched");
  const Plan masked =
      muster::plan(machine({4}), {.visibility = Visibility::all, .masks = {.cuda = "3,1"}});
  EXPECT_THAT(devices(masked), ElementsAre("n0:3", "n0:1"));
  EXPECT_THAT(ordinals(masked), ElementsAre(0, 1));
}

TEST(Planner, InheritedMaskIsOuter) {
  const Plan plan = muster::plan(machine({4}), {.masks = {.cuda = "3,1"}});
  EXPECT_THAT(devices(plan), ElementsAre("n0:3", "n0:1"));
  EXPECT_EQ(visible(plan, 0), cat(test_uuid(0, 3), ",", test_uuid(0, 1)));
  EXPECT_THAT(plan.notes, ElementsAre("CUDA_VISIBLE_DEVICES='3,1' shows 2 of 4 GPUs"));
  EXPECT_THAT(devices(muster::plan(machine({4}), {.gpus = "1", .masks = {.cuda = "3,1"}})),
              ElementsAre("n0:1"))
      << "ids are physical";
  EXPECT_THAT(error_of(machine({4}), {.gpus = "0", .masks = {.cuda = "3,1"}}),
              HasSubstr("host n0 has GPUs 3, 1"));
}

TEST(Planner, MaskThatHidesEverything) {
  const Plan plan = muster::plan(machine({4}), {.masks = {.cuda = ""}});
  EXPECT_THAT(devices(plan), ElementsAre("n0:cpu0", "n0:cpu1"));
  EXPECT_THAT(plan.notes,
              ElementsAre("CUDA_VISIBLE_DEVICES='' shows 0 of 4 GPUs",
                          HasSubstr("no GPU (all hidden by CUDA_VISIBLE_DEVICES): 2 CPU slots")));
  EXPECT_THAT(
      error_of(machine({4}), {.gpu_only = true, .masks = {.cuda = "-1"}}, ErrorCode::unavailable),
      HasSubstr("CUDA_VISIBLE_DEVICES='-1' shows 0 of 4 GPUs"));
}

TEST(Planner, SimulatedPlansTouchNoCudaVariable) {
  Inventory inventory = machine({2});
  inventory.simulated = true;
  const Plan plan = muster::plan(inventory, {});
  EXPECT_TRUE(plan.simulated);
  EXPECT_EQ(visible(plan, 0), "untouched");
}

TEST(Planner, AmdGpusAreShownByTheirOwnVariable) {
  const Plan plan = muster::plan(with_amd(0, 2), {});
  const VisibilityVariables expected = {
      {"ROCR_VISIBLE_DEVICES", cat(test_uuid(0, 0), ",", test_uuid(0, 1))},
      {"HIP_VISIBLE_DEVICES", std::nullopt},
      {"CUDA_VISIBLE_DEVICES", ""}};
  EXPECT_EQ(visibility_variables(plan, plan.ranks[1]), expected);
  EXPECT_THAT(visibility_variables(muster::plan(with_amd(0, 2), {.visibility = Visibility::all}),
                                   plan.ranks[0]),
              IsEmpty());
}

TEST(Planner, AmdGpusWithoutAnIdGoByTheirNumber) {
  Inventory inventory = with_amd(0, 2);
  inventory.hosts[0].gpus[1].uuid.value = "GPU-pci-0000:03:00.0";
  const Plan plan = muster::plan(inventory, {.visibility = Visibility::own});
  EXPECT_EQ(visibility_variables(plan, plan.ranks[1]).at("ROCR_VISIBLE_DEVICES"), "1");
  Inventory mixed = with_amd(1, 1);
  mixed.hosts[0].gpus[1].uuid.value = "GPU-pci-0000:03:00.0";
  const Plan without = muster::plan(mixed, {});
  EXPECT_THAT(devices(without), ElementsAre("n0:0"));
  EXPECT_THAT(without.notes, testing::Contains(HasSubstr("left out GPU 1: no unique id")));
  EXPECT_THAT(error_of(mixed, {.gpus = "1"}), HasSubstr("no unique id"));
}

TEST(Planner, RanksOnBothVendorsSeeTheirOwnGpuAlone) {
  const Plan plan = muster::plan(with_amd(1, 1), {});
  EXPECT_EQ(plan.visibility, Visibility::own);
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 0));
  const VisibilityVariables first = {{"CUDA_VISIBLE_DEVICES", test_uuid(0, 0)},
                                     {"ROCR_VISIBLE_DEVICES", ""},
                                     {"HIP_VISIBLE_DEVICES", std::nullopt}};
  EXPECT_EQ(visibility_variables(plan, plan.ranks[0]), first);
  EXPECT_EQ(visibility_variables(plan, plan.ranks[1]).at("CUDA_VISIBLE_DEVICES"), "");
}

}  // namespace
}  // namespace muster
