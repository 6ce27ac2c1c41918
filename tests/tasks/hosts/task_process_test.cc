#include "muster/tasks/hosts/task_process.h"

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/launch/lease_plan.h"
#include "muster/placement/plan_json.h"
#include "tests/tasks/schedule/machines.h"

namespace muster::tasks_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DevicePool real_pool(int gpus) {
  return DevicePool({.source = "test", .hosts = {host_with(gpus)}});
}

Allocation place_on(const DevicePool& pool, const TaskNeed& need) {
  return pool.find(need).value();
}

TEST(TaskProcess, ATaskSeesItsOwnGpusAlone) {
  const DevicePool pool = real_pool(4);
  Task task = task_of("two", {{.gpus = 2, .cpus = 3}});
  task.environment = {{"CUDA_VISIBLE_DEVICES", "9"}, {"MINE", "yes"}};
  TaskRunFacts run{.run_dir = "/run", .mark = "mark"};
  run.environment = {{"MINE", "no"},
                     {"RANK", "3"},
                     {"MUSTER_LEASE_FD", "9"},
                     {"MUSTER_GPUS", "9"},
                     {"PATH", "/bin"}};
  const Allocation where = place_on(pool, task.needs[0]);
  const Environment variables = task_environment(task, run, pool, where, 2, "/run/logs/a", "7,8");
  const TaskAttempt attempt = attempt_of(pool, where, 2);
  ASSERT_EQ(attempt.devices.size(), 2U);
  EXPECT_EQ(variables.at("CUDA_VISIBLE_DEVICES"), attempt.devices[0] + "," + attempt.devices[1]);
  EXPECT_EQ(variables.at("MUSTER_DEVICE"), variables.at("CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(variables.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  EXPECT_EQ(variables.at("MUSTER_TASK"), "two");
  EXPECT_EQ(variables.at("MUSTER_ATTEMPT"), "2");
  EXPECT_EQ(variables.at("MUSTER_RUN_DIR"), "/run");
  EXPECT_EQ(variables.at("MUSTER_TASK_DIR"), "/run/logs/a");
  EXPECT_EQ(variables.at("MUSTER_LEASE_FD"), "7,8");
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(variables.at("MINE"), "yes");
  EXPECT_EQ(variables.at("PATH"), "/bin");
  EXPECT_FALSE(variables.contains("RANK")) << "it speaks of another process";
  EXPECT_FALSE(variables.contains("MUSTER_SIMULATED"));
  EXPECT_FALSE(variables.contains("MUSTER_GPUS")) << "it speaks of the whole machine";
}

TEST(TaskProcess, ATaskSeesAllOfItsMigInstances) {
  Host host = host_with(1);
  host.gpus[0].mig_enabled = true;
  host.gpus[0].mig = {{{"MIG-a"}, "3g.40gb", kGpuBytes / 2}, {{"MIG-b"}, "3g.40gb", kGpuBytes / 2}};
  const DevicePool pool({.source = "test", .hosts = {host}});
  Task task = task_of("two", {{.gpus = 2}});
  const Allocation where = place_on(pool, task.needs[0]);
  const auto seen = [&](Visibility visibility) {
    return task_environment(task, {.visibility = visibility}, pool, where, 0, "", "")
        .at("CUDA_VISIBLE_DEVICES");
  };
  EXPECT_EQ(seen(Visibility::job), "MIG-a,MIG-b");
  EXPECT_EQ(seen(Visibility::own), "MIG-a,MIG-b") << "there are no ranks";
  task.ranks = 2;
  EXPECT_EQ(seen(Visibility::all), "MIG-a,MIG-b");
  EXPECT_EQ(plan_of(task, pool, where).visibility, Visibility::own) << "a rank sees its own";
}

TEST(TaskProcess, ACpuTaskSeesNoGpuWhereThereAreSome) {
  const Task task = task_of("cpu", {{.cpus = 2}});
  for (const int gpus : {0, 2}) {
    const DevicePool pool = real_pool(gpus);
    const Environment variables =
        task_environment(task, {}, pool, place_on(pool, task.needs[0]), 0, "", "");
    ASSERT_EQ(variables.contains("CUDA_VISIBLE_DEVICES"), gpus > 0);
    if (gpus > 0) {
      EXPECT_EQ(variables.at("CUDA_VISIBLE_DEVICES"), "");
    }
    EXPECT_EQ(variables.at("MUSTER_DEVICE"), "cpu:0");
    EXPECT_EQ(variables.at("MUSTER_CPU_SLOTS"), "1")
        << "a program that starts its own ranks starts one";
  }
}

TEST(TaskProcess, OnASimulatedMachineNoGpuIsShown) {
  const DevicePool pool = pool_of(2);
  const Task task = task_of("a", {{.gpus = 1}});
  const Environment variables =
      task_environment(task, {}, pool, place_on(pool, task.needs[0]), 0, "", "");
  EXPECT_EQ(variables.at("MUSTER_SIMULATED"), "1");
  EXPECT_FALSE(variables.contains("CUDA_VISIBLE_DEVICES"));
  EXPECT_TRUE(lease_wishes_of(pool, place_on(pool, task.needs[0])).empty());
}

TEST(TaskProcess, AProgramThatStartsItsOwnRanksFindsItsSimulatedGpus) {
  Inventory box{
      .source = "/boxes/box.toml", .simulated = true, .hosts = {host_with(4, 100'000, "box")}};
  const DevicePool pool(box);
  const Task task = task_of("a", {{.gpus = 2}});
  const Allocation where = place_on(pool, task.needs[0]);
  Environment variables = task_environment(task, {}, pool, where, 0, "", "");
  EXPECT_EQ(variables.at("MUSTER_INVENTORY"), "/boxes/box.toml");
  EXPECT_EQ(variables.at("MUSTER_GPUS"),
            cat("box:", join(attempt_of(pool, where, 0).devices, ",")));
  EXPECT_LE(std::stoul(variables.at("OMP_NUM_THREADS")), std::thread::hardware_concurrency())
      << "the threads are this machine's";
  const Task cpu = task_of("b", {{.cpus = 50'000}});
  variables = task_environment(cpu, {}, pool, place_on(pool, cpu.needs[0]), 0, "", "");
  EXPECT_FALSE(variables.contains("MUSTER_GPUS"));
  EXPECT_EQ(std::stoul(variables.at("OMP_NUM_THREADS")), std::thread::hardware_concurrency());
}

TEST(TaskProcess, LeasesAreOfTheShare) {
  const DevicePool pool = real_pool(2);
  EXPECT_EQ(lease_wishes_of(pool, place_on(pool, {.gpus = 0.25})).at(0).units, 250);
  EXPECT_EQ(lease_wishes_of(pool, place_on(pool, {.gpus = 2})).size(), 2U);
}

TEST(TaskProcess, RanksAreTheLaunchersAffairByAnExactPlan) {
  const DevicePool pool = real_pool(4);
  Task task = task_of("ddp", {{.gpus = 2}});
  task.ranks = 2;
  const Plan plan = plan_of(task, pool, place_on(pool, task.needs[0]));
  ASSERT_EQ(plan.ranks.size(), 2U);
  EXPECT_NE(plan.ranks[0].device.uuid, plan.ranks[1].device.uuid);
  EXPECT_EQ(plan.ranks[1].device.ordinal.value, 1);
  task.ranks = 4;
  const Plan shared = plan_of(task, pool, place_on(pool, task.needs[0]));
  EXPECT_EQ(shared.ranks[3].device.uuid, shared.ranks[1].device.uuid);
  EXPECT_EQ(shared.visibility, Visibility::own) << "ranks that share a GPU see it alone";
  Task pairs = task_of("tensor parallel", {{.gpus = 4}});
  pairs.ranks = 2;
  const Allocation all = place_on(pool, pairs.needs[0]);
  const Plan two_each = plan_of(pairs, pool, all);
  EXPECT_EQ(two_each.visibility, Visibility::job);
  EXPECT_EQ(two_each.ranks[1].device.ordinal.value, 2);
  EXPECT_EQ(two_each.ranks[1].more_devices.at(0).ordinal.value, 3);
  EXPECT_EQ(plan_from_json(plan_to_json(two_each), "p"), two_each);
  EXPECT_THAT(lease_wishes(two_each, 0), testing::SizeIs(4));
  const auto argv = task_argv(task, {.launcher = "/bin/muster"}, pool, "p.json", "job");
  EXPECT_THAT(argv, testing::Contains("--plan"));
  EXPECT_EQ(argv.back(), "true");
}

// As `muster run` has it, for ranks of one GPU and of several.
TEST(TaskProcess, ARankSeesWhatVisibilitySays) {
  const DevicePool pool = real_pool(4);
  Task task = task_of("ranks", {{.gpus = 4}});
  const Allocation where = place_on(pool, task.needs[0]);
  std::vector<std::string> gpus;
  for (const int gpu : where.gpus)
    gpus.push_back(pool.hosts()[0].gpus[static_cast<size_t>(gpu)].uuid.value);
  const auto seen = [&](int ranks, Visibility visibility) {
    task.ranks = ranks;
    const Plan plan = plan_of(task, pool, where, visibility);
    auto variables = task_environment(task, {.visibility = visibility}, pool, where, 0, "", "");
    const RankPlan& rank = plan.ranks[1];
    for (const auto& [name, value] : visibility_variables(plan, rank))
      variables[name] = value.value_or("");
    return std::pair(variables["CUDA_VISIBLE_DEVICES"], rank.device.ordinal.value);
  };
  const auto list = [&](const std::vector<size_t>& places) {
    std::vector<std::string> names;
    for (const size_t place : places)
      names.push_back(gpus[place]);
    return join(names, ",");
  };
  EXPECT_EQ(seen(4, Visibility::job), std::pair(list({0, 1, 2, 3}), 1));
  EXPECT_EQ(seen(4, Visibility::own), std::pair(list({1}), 0));
  EXPECT_EQ(seen(4, Visibility::own_first), std::pair(list({1, 0, 2, 3}), 0));
  EXPECT_EQ(seen(4, Visibility::all), std::pair(list({0, 1, 2, 3}), 1));
  EXPECT_EQ(seen(2, Visibility::job), std::pair(list({0, 1, 2, 3}), 2));
  EXPECT_EQ(seen(2, Visibility::own), std::pair(list({2, 3}), 0));
  EXPECT_EQ(seen(2, Visibility::own_first), std::pair(list({2, 3, 0, 1}), 0));
  EXPECT_EQ(seen(2, Visibility::all), std::pair(list({0, 1, 2, 3}), 2));
}

TEST(DevicePool, CpusAreCountedNearTheGpusAndBoundByTheNode) {
  Host host = host_with(8, 16);
  for (int i = 0; i < 16; ++i)
    host.cores.push_back({.cpus = {i}, .numa_node = i / 8});
  const auto cpus_of_place = [&](NumaBinding binding, const TaskNeed& need, const std::string& on) {
    const DevicePool pool({.source = "test", .hosts = {host}},
                          {.gpus = Selection(on), .numa_binding = binding});
    return pool.find(need)->bound;
  };
  EXPECT_THAT(cpus_of_place(NumaBinding::exclusive, {.gpus = 1, .cpus = 2}, "5"),
              ElementsAre(8, 9));
  EXPECT_THAT(cpus_of_place(NumaBinding::node, {.gpus = 1}, "5"),
              ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(cpus_of_place(NumaBinding::none, {.gpus = 1, .cpus = 2}, "5"), ElementsAre());
  EXPECT_THAT(cpus_of_place(NumaBinding::node, {.cpus = 12}, ""), ElementsAre())
      << "more than a node has";
}

TEST(DevicePool, ExclusiveCpusAreHadWithoutSayingHowMany) {
  Host host = host_with(4, 16);
  for (int i = 0; i < 16; ++i)
    host.cores.push_back({.cpus = {i}, .numa_node = i / 8});
  DevicePool pool({.source = "test", .hosts = {host}}, {.numa_binding = NumaBinding::exclusive});
  std::set<int> taken;
  for (const TaskNeed& need : {TaskNeed{.gpus = 1},
                               TaskNeed{.gpus = 2},
                               TaskNeed{.gpus = 0.5},
                               TaskNeed{.gpus = 0.5, .cpus = 1}}) {
    const Allocation where = pool.find(need).value();
    pool.take(where);
    EXPECT_EQ(where.bound.size(), where.cpus) << describe(need);
    for (const int cpu : where.bound)
      EXPECT_TRUE(taken.insert(cpu).second) << "CPU " << cpu << " twice";
  }
  EXPECT_EQ(taken.size(), 4 + 8 + 2 + 1U) << "a GPU's part is four";
  EXPECT_EQ(pool.find({.cpus = 1})->bound.size(), 1U);
  EXPECT_FALSE(pool.find({.cpus = 2}));
}

TEST(DevicePool, ExclusiveCpusThatCannotBeAreAnError) {
  const auto error_of = [](const Host& host, int cpus) -> std::string {
    try {
      const DevicePool pool({.source = "test", .hosts = {host}},
                            {.cpus = cpus, .numa_binding = NumaBinding::exclusive});
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  Host host = host_with(1, 4);
  EXPECT_THAT(error_of(host, 0), testing::HasSubstr("CPUs whose numbers are not known (host box)"));
  for (int i = 0; i < 4; ++i)
    host.cores.push_back({.cpus = {i}});
  EXPECT_EQ(error_of(host, 0), "none");
  EXPECT_THAT(error_of(host, 8),
              testing::HasSubstr("8 CPUs, more than there are (host box); give fewer --cpus"));
}

}  // namespace
}  // namespace muster::tasks_test
