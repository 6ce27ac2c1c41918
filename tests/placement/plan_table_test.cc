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
  const Plan plan = muster::plan(inventory, {.nproc_per_node = 2, .surplus = Surplus::cpu});
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
  EXPECT_EQ(plan_table(muster::plan(machine({0}), {})),
            R"(rank  host  local  device      why
   0  n0        0  CPU slot 0  no GPU: CPU slot 0
   1  n0        1  CPU slot 1  no GPU: CPU slot 1
note: no GPU (no driver): 2 CPU slots, one rank each; --cpu-slots N or MUSTER_CPU_SLOTS=N changes how many
)");
}

TEST(PlanTable, InstancesOfOneGpuAreToldApart) {
  Plan plan;
  for (const int instance : {7, 8}) {
    RankPlan rank;
    rank.rank = rank.local_rank = instance - 7;
    rank.host = "n0";
    rank.device = {.kind = DeviceAssignment::Kind::gpu, .model = "A100 MIG 1g.10gb"};
    rank.device.uuid.value = cat("MIG-GPU-5607aa21-1111-2222-3333-444444444444/", instance, "/0");
    rank.device.index.value = rank.device.ordinal.value = 0;
    plan.ranks.push_back(rank);
  }
  EXPECT_EQ(plan_table(plan),
            R"(rank  host  local  device                                     ordinal
   0  n0        0  GPU 0  MIG-GPU-5607/7/0  A100 MIG 1g.10gb        0
   1  n0        1  GPU 0  MIG-GPU-5607/8/0  A100 MIG 1g.10gb        0
)");
}

TEST(PlanTable, CpusAndShares) {
  Inventory inventory = machine({2});
  inventory.hosts[0].gpus[1].numa_node = 1;
  inventory.hosts[0].gpus[1].near_cpus = "4-7";
  EXPECT_EQ(
      plan_table(muster::plan(inventory, {.global_batch = 65})),
      R"(rank  host  local  device                         ordinal  NUMA  near CPUs  share  why
   0  n0        0  GPU 0  GPU-00000000  Test GPU        0     -  -             33  sequential: 1 of 2 GPUs
   1  n0        1  GPU 1  GPU-00010000  Test GPU        1     1  4-7           32  sequential: 2 of 2 GPUs
)");
  Host& host = inventory.hosts[0];
  host.gpus[0].numa_node = 1;
  host.cores = {{.cpus = {4, 6}, .numa_node = 1}, {.cpus = {5, 7}, .numa_node = 1}};
  EXPECT_EQ(plan_table(muster::plan(inventory, {.numa_binding = NumaBinding::exclusive})),
            R"(rank  host  local  device                         ordinal  NUMA  bound to CPUs  why
   0  n0        0  GPU 0  GPU-00000000  Test GPU        0     1  4,6            sequential: 1 of 2 GPUs
   1  n0        1  GPU 1  GPU-00010000  Test GPU        1     1  5,7            sequential: 2 of 2 GPUs
)");
}

}  // namespace
}  // namespace muster
