// Meshes of ranks on machines: which GPUs are neighbours along which axis.
#include <gmock/gmock.h>

#include <random>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"
#include "muster/placement/planner.h"
#include "muster/placement/policy/mesh_order.h"
#include "tests/placement/policy/topologies.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Plan mesh_plan(const std::vector<Host>& hosts, const std::string& mesh, Request request = {}) {
  request.mesh = parse_axes(mesh);
  return muster::plan({.source = "test", .hosts = hosts}, request);
}

std::vector<int> gpus_of(const Plan& plan) {
  std::vector<int> indices;
  for (const RankPlan& rank : plan.ranks) indices.push_back(rank.device.index.value);
  return indices;
}

std::string mesh_error(const std::vector<Host>& hosts, const std::string& mesh, const Request& request = {}) {
  try {
    mesh_plan(hosts, mesh, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

// Bridged pairs are (0, 2) and (1, 3).
TEST(MeshPlacement, TheLastAxisGetsTheBestLinks) {
  const Plan plan = mesh_plan({workstation()}, "dp=2,tp=2");
  EXPECT_THAT(gpus_of(plan), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(plan.policy, "mesh");
  EXPECT_EQ(plan.ranks[0].reason, "mesh: along tp GPU 2 by NV4 100 GB/s");
  EXPECT_EQ(plan.ranks[3].reason, "mesh: along tp GPU 1 by NV4 100 GB/s");
}

// All pairs along tp on double links.
TEST(MeshPlacement, HybridCubeMesh) {
  EXPECT_THAT(gpus_of(mesh_plan({dgx1()}, "dp=2,pp=2,tp=2")), ElementsAre(0, 3, 1, 2, 4, 7, 5, 6));
  EXPECT_THAT(gpus_of(mesh_plan({dgx1()}, "dp=-1,tp=4", {.nproc_per_node = 8})).size(), 8U);
}

TEST(MeshPlacement, WithoutANumberThereAreTheMeshsRanks) {
  EXPECT_EQ(mesh_plan({dgx1()}, "tp=2").ranks.size(), 2U);
  EXPECT_EQ(to_string(mesh_plan({dgx1()}, "dp=-1,tp=2").mesh), "dp=4,tp=2");
  Host cpu;
  cpu.name = "box";
  cpu.cpu_slots = 2;
  EXPECT_EQ(mesh_plan({cpu}, "dp=2,pp=2,tp=2").ranks.size(), 8U);
}

TEST(MeshPlacement, AxesBetweenHostsAreNamed) {
  Host a = dgx1(), b = dgx1();
  a.name = "a";
  b.name = "b";
  const Plan plan = mesh_plan({a, b}, "dp=2,pp=2,tp=4");
  EXPECT_THAT(plan.notes, testing::Contains("mesh dp=2,pp=2,tp=4: ranks along dp lie on several hosts"));
  EXPECT_THAT(mesh_plan({dgx1()}, "dp=2,tp=4").notes, testing::IsEmpty());
  EXPECT_THAT(mesh_error({a, b}, "tp=3"), HasSubstr("ranks that 2 hosts can divide evenly, got 3"));
}

TEST(MeshPlacement, TableAndJsonShowIt) {
  const Plan plan = mesh_plan({workstation()}, "dp=2,tp=2");
  EXPECT_THAT(plan_table(plan), HasSubstr("dp 1, tp 0"));
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "test"), plan);
  std::string text = plan_to_json(plan);
  text.replace(text.find("dp=2,tp=2"), 9, "dp=3,tp=2");
  EXPECT_THROW(plan_from_json(text, "test"), Error);
}

TEST(MeshPlacement, WrongOnesAreRefused) {
  EXPECT_THAT(mesh_error({workstation()}, "dp=3", {.nproc_per_node = 4}), HasSubstr("the 4 ranks there are"));
  EXPECT_THAT(mesh_error({workstation()}, "dp=0"), HasSubstr("sizes of at least 1"));
  try {
    muster::plan({.source = "test", .hosts = {workstation()}}, {.policy = "mesh"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("give --mesh dp=2,tp=2"));
  }
}

// Of machines of few devices every order is looked at; the search for more must find as good a one.
TEST(MeshOrder, TheSearchIsSeldomWorseThanTheBest) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    Bandwidths links(6, std::vector<int64_t>(6));
    for (size_t a = 0; a < 6; ++a)
      for (size_t b = 0; b < a; ++b) links[a][b] = links[b][a] = static_cast<int64_t>(random() % 4);
    const std::vector<int> sizes{3, 2};
    const auto order = best_mesh_order(links, sizes);
    const auto quality = mesh_quality(links, sizes, order);
    std::vector<size_t> other(6);
    std::iota(other.begin(), other.end(), size_t{0});
    for (int i = 0; i < 100; ++i) {
      std::shuffle(other.begin(), other.end(), random);
      auto found = mesh_quality(links, sizes, other);
      std::reverse(found.begin(), found.end());
      auto best = quality;
      std::reverse(best.begin(), best.end());
      EXPECT_LE(found, best);
    }
  }
}

// Sixteen, too many to look at every order: pairs with one fast link each, hidden in a shuffled machine.
TEST(MeshOrder, TheSearchFindsHiddenPairs) {
  std::mt19937 random(5);
  std::vector<size_t> hidden(16);
  std::iota(hidden.begin(), hidden.end(), size_t{0});
  std::shuffle(hidden.begin(), hidden.end(), random);
  Bandwidths links(16, std::vector<int64_t>(16, 1));
  for (size_t i = 0; i < 16; i += 2) links[hidden[i]][hidden[i + 1]] = links[hidden[i + 1]][hidden[i]] = 9;
  const auto quality = mesh_quality(links, {8, 2}, best_mesh_order(links, {8, 2}));
  EXPECT_EQ(quality[1].slowest, 9);
}

}  // namespace
}  // namespace muster
