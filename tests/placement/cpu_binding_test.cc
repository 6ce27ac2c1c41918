#include "muster/placement/cpu_binding.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/planner.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two sockets of two NUMA nodes with three cores each; thread t of core c is CPU c + 12 t. The
// first two cores of each node share a cache, the third has its own. GPU i is on node i / 2.
Host two_sockets(int num_gpus = 8) {
  Host host = gpu_host(0, num_gpus);
  for (int core = 0; core < 12; ++core) {
    const int node = core / 3;
    host.cores.push_back({.cpus = {core, core + 12},
                          .numa_node = node,
                          .socket = node / 2,
                          .l3 = 2 * node + (core % 3 == 2 ? 1 : 0)});
  }
  for (int i = 0; i < num_gpus; ++i)
    host.gpus[static_cast<size_t>(i)].numa_node = i / 2;
  return host;
}

Plan bound_plan(const Host& host, NumaBinding binding, const std::string& gpus = "") {
  return muster::plan({.source = "test", .hosts = {host}}, {.gpus = gpus, .numa_binding = binding});
}

std::vector<std::string> cpus(const Plan& plan) {
  std::vector<std::string> all;
  for (const RankPlan& rank : plan.ranks)
    all.push_back(rank.cpus + (rank.bind_cpus ? "" : " unbound"));
  return all;
}

std::string binding_error(const Host& host, NumaBinding binding) {
  try {
    bound_plan(host, binding);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(CpuBinding, NodeIsAllOfTheGpusNode) {
  EXPECT_THAT(cpus(bound_plan(two_sockets(), NumaBinding::node, "0,7")),
              ElementsAre("0-2,12-14", "9-11,21-23"));
}

TEST(CpuBinding, SocketIsAllOfItsNodes) {
  EXPECT_THAT(cpus(bound_plan(two_sockets(), NumaBinding::socket, "0,2,4")),
              ElementsAre("0-5,12-17", "0-5,12-17", "6-11,18-23"));
}

TEST(CpuBinding, ExclusiveDividesTheCoresAmongTheJobsRanks) {
  EXPECT_THAT(cpus(bound_plan(two_sockets(), NumaBinding::exclusive, "1,0,2")),
              ElementsAre("0-1,12-13", "2,14", "3-5,15-17"))
      << "the first on a node gets the core that is left over; a rank that is alone has all";
}

TEST(CpuBinding, CoreComplexIsOneCacheEachTheLargestFirst) {
  EXPECT_THAT(cpus(bound_plan(two_sockets(), NumaBinding::core_complex, "0,1,2")),
              ElementsAre("0-1,12-13", "2,14", "3-4,15-16"));
  Host host = two_sockets(3);
  for (Gpu& gpu : host.gpus)
    gpu.numa_node = 0;
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::core_complex)),
              ElementsAre("0-1,12-13", "2,14", "0-1,12-13"));
}

TEST(CpuBinding, NoneNamesWhatIsNear) {
  Host host = two_sockets(4);
  host.gpus[0].near_cpus = "0-5";
  EXPECT_THAT(
      cpus(bound_plan(host, NumaBinding::none)),
      ElementsAre("0-5 unbound", "0-2,12-14 unbound", "3-5,15-17 unbound", "3-5,15-17 unbound"));
  host.cores.clear();
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::none, "0,1")),
              ElementsAre("0-5 unbound", " unbound"));
}

TEST(CpuBinding, OnlyCpusThatThereAre) {
  Host host = two_sockets(2);
  host.gpus[0].near_cpus = host.gpus[1].near_cpus = "0-2,12-14";
  host.cores.erase(host.cores.begin());  // taken away by a container, say
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::node)), ElementsAre("1-2,13-14", "1-2,13-14"));
}

TEST(CpuBinding, WhatIsNotKnownIsAnError) {
  Host host = two_sockets(2);
  host.gpus[1].numa_node.reset();
  EXPECT_EQ(binding_error(host, NumaBinding::node),
            "--numa-binding node: expected to know the GPU's NUMA node, got none (rank 1, GPU 1 of "
            "host n0); "
            "--numa-binding none leaves ranks unbound");
  host = two_sockets(2);
  host.cores.clear();
  EXPECT_THAT(binding_error(host, NumaBinding::exclusive),
              HasSubstr("to know the host's cores, got none"));
  host = two_sockets(2);
  host.gpus[0].numa_node = 9;
  EXPECT_THAT(binding_error(host, NumaBinding::socket),
              HasSubstr("usable CPUs on NUMA node 9, got none (rank 0"));
  host = two_sockets(4);
  for (Gpu& gpu : host.gpus)
    gpu.numa_node = 0;
  EXPECT_THAT(binding_error(host, NumaBinding::exclusive),
              HasSubstr("a core for each of 4 ranks on NUMA node 0, got 3"));
}

// As most virtual machines and single-socket machines are: the devices name no node, and there is
// one.
TEST(CpuBinding, OneNodeIsEveryGpusNode) {
  Host host = gpu_host(0, 2);
  for (int core = 0; core < 4; ++core)
    host.cores.push_back({.cpus = {core}, .numa_node = 1});
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::node)), ElementsAre("0-3", "0-3"));
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::exclusive)), ElementsAre("0-1", "2-3"));
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::socket)), ElementsAre("0-3", "0-3"));
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::core_complex)), ElementsAre("0-3", "0-3"));
  EXPECT_THAT(cpus(bound_plan(host, NumaBinding::none)), ElementsAre("0-3 unbound", "0-3 unbound"));
  EXPECT_EQ(bound_plan(host, NumaBinding::none).ranks[1].numa_node, 1);
  host.cores[3].numa_node = 0;
  EXPECT_THAT(binding_error(host, NumaBinding::node),
              HasSubstr("to know the GPU's NUMA node, got none"));
}

TEST(CpuBinding, CpuRanksAreLeftAlone) {
  const Plan plan = muster::plan(
      {.source = "test", .hosts = {two_sockets(1)}},
      {.nproc_per_node = 2, .numa_binding = NumaBinding::node, .surplus = Surplus::cpu});
  EXPECT_THAT(cpus(plan), ElementsAre("0-2,12-14", " unbound"));
  EXPECT_THAT(plan.notes, testing::Contains(HasSubstr("bound to no CPUs")));
  EXPECT_THROW(muster::plan(machine({0}), {.numa_binding = NumaBinding::node}), Error);
}

}  // namespace
}  // namespace muster
