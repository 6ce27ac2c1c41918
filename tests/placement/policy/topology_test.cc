#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/planner.h"
#include "tests/placement/policy/topologies.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Plan topology_plan(const Host& host, const Request& request) {
  Request topology = request;
  topology.policy = "topology";
  return muster::plan({.source = "test", .hosts = {host}}, topology);
}

std::vector<int> gpus(const Host& host, int num_ranks, const std::string& selection = "") {
  std::vector<int> indices;
  for (const RankPlan& rank :
       topology_plan(host, {.nproc_per_node = num_ranks, .gpus = selection}).ranks) {
    indices.push_back(rank.device.index.value);
  }
  return indices;
}

std::string topology_error(const Host& host) {
  try {
    topology_plan(host, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Topology, BridgedPairsAreFound) {
  EXPECT_THAT(gpus(workstation(), 2), ElementsAre(0, 2));
  EXPECT_THAT(gpus(workstation(), 2, "1,3,4"), ElementsAre(1, 3)) << "of the selection";
  EXPECT_THAT(gpus(workstation(), 4), ElementsAre(0, 1, 3, 2))
      << "both bridges, and not the slow card";
}

TEST(Topology, SocketsAreCrossedTwiceOnly) {
  EXPECT_THAT(gpus(dual_socket_pcie(), 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(gpus(dual_socket_pcie(), 4, "0,2,1,3"), ElementsAre(0, 2, 3, 1));
}

// Double links are 50 GB/s a direction, single ones 25. A ring of double links alone goes through
// all eight.
TEST(Topology, HybridCubeMesh) {
  EXPECT_THAT(gpus(dgx1(), 8), ElementsAre(0, 3, 2, 1, 5, 6, 7, 4));
  EXPECT_THAT(gpus(dgx1(), 2), ElementsAre(0, 3));
}

TEST(Topology, SaysWhy) {
  const Plan plan = topology_plan(workstation(), {.nproc_per_node = 4});
  EXPECT_EQ(plan.ranks[3].reason,
            "topology: next GPU 0 by NV4 100 GB/s, slowest of the ring 12.608 GB/s");
  EXPECT_EQ(plan.ranks[0].reason,
            "topology: next GPU 1 by PHB 12.608 GB/s, slowest of the ring 12.608 GB/s");
}

// Double links join GPUs 1 and 2, and 3 and 0: the ring in the order of the indices begins in the
// middle of a pair.
TEST(Topology, RanksOfSeveralGpusHaveTheFastLinksWithin) {
  Host host = gpu_host(0, 4);
  host.gpu_links.assign(4, std::vector<Link>(4, Link{.kind = LinkKind::sys}));
  for (int i = 0; i < 4; ++i) {
    const int next = (i + 1) % 4;
    const Link link{.kind = LinkKind::nvlink, .count = 1 + i % 2};
    host.gpu_links[i][next] = host.gpu_links[next][i] = link;
  }
  const Plan plan = topology_plan(host, {.gpus_per_rank = 2});
  ASSERT_EQ(plan.ranks.size(), 2U);
  for (const RankPlan& rank : plan.ranks) {
    const int pair = rank.device.index.value + rank.more_devices[0].index.value;
    EXPECT_EQ(pair, 3) << "rank " << rank.rank << " has GPU " << rank.device.index.value;
    EXPECT_THAT(rank.reason, HasSubstr("by NV2"));
  }
}

TEST(Topology, MoreRanksGoRoundAgain) {
  const Plan plan = topology_plan(workstation(), {.nproc_per_node = 6, .surplus = Surplus::share});
  EXPECT_EQ(plan.ranks[5].device, plan.ranks[0].device);
}

TEST(Topology, OneGpuNeedsNoLinks) {
  EXPECT_THAT(gpus(gpu_host(0, 3), 1), ElementsAre(0));
  EXPECT_THAT(gpus(gpu_host(0, 3), 1, "2"), ElementsAre(2));
}

TEST(Topology, LinksMustBeKnown) {
  EXPECT_EQ(topology_error(gpu_host(0, 4)),
            "--policy topology: expected to know the links between the GPUs, got none (host n0); "
            "--policy "
            "sequential or numa needs no links");
  Host host = dual_socket_pcie();
  host.gpu_links[2].pop_back();
  EXPECT_THAT(topology_error(host), HasSubstr("a link for each two of 4 GPUs"));
  for (auto& row : host.gpu_links)
    row.assign(4, Link{});
  EXPECT_THAT(topology_error(host), HasSubstr("got no known link"));
}

TEST(Topology, HostByHost) {
  Inventory inventory{.source = "test", .hosts = {workstation(), dual_socket_pcie()}};
  inventory.hosts[1].name = "n1";
  const Plan plan = muster::plan(inventory, {.nproc_per_node = 2, .policy = "topology"});
  std::vector<int> indices;
  for (const RankPlan& rank : plan.ranks)
    indices.push_back(rank.device.index.value);
  EXPECT_THAT(indices, ElementsAre(0, 2, 0, 1));
}

}  // namespace
}  // namespace muster
