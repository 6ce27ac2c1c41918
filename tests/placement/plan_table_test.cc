#include "muster/placement/plan_table.h"

#include <gtest/gtest.h>

#include "muster/placement/planner.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

TEST(PlanTable, GpusAndCpuSlotsOfSeveralHosts) {
  Inventory inventory = machine({3, 1});
  inventory.hosts[0].gpus[1].health = "GPU is lost";
  inventory.hosts[1].name = "a-longer-name";
  const Plan plan = make_plan(inventory, {.nproc_per_node = 2, .surplus = Surplus::cpu});
  EXPECT_EQ(plan_table(plan),
            R"(rank  host           local  device                         ordinal  why
   0  n0                 0  GPU 0  GPU-00000000  Test GPU        0  sequential: 1 of 2 GPUs
   1  n0                 1  GPU 2  GPU-00020000  Test GPU        1  sequential: 2 of 2 GPUs
   2  a-longer-name      0  GPU 0  GPU-01000000  Test GPU        0  sequential: 1 of 1 GPU
   3  a-longer-name      1  CPU slot 0                           -  surplus: 1 GPU taken; CPU slot 0
note: host n0: left out GPU 1: GPU is lost
note: host a-longer-name: 2 ranks asked for, 1 GPU: the other 1 on CPU slots (--surplus cpu)
)");
}

TEST(PlanTable, CpuSlots) {
  EXPECT_EQ(plan_table(make_plan(machine({0}), {})),
            R"(rank  host  local  device      ordinal  why
   0  n0        0  CPU slot 0        -  no GPU: CPU slot 0
   1  n0        1  CPU slot 1        -  no GPU: CPU slot 1
note: no GPU (no driver): 2 CPU slots, one rank each; --cpu-slots N or MUSTER_CPU_SLOTS=N changes how many
)");
}

}  // namespace
}  // namespace muster
