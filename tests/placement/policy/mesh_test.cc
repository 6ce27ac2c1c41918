// Meshes of ranks on machines: which GPUs are neighbours along which axis.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"
#include "muster/placement/planner.h"
#include "muster/placement/policy/mesh_order.h"
#include "muster/placement/policy/mesh_search.h"
#include "muster/placement/policy/order_improver.h"
#include "muster/placement/policy/ring.h"
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
  for (const RankPlan& rank : plan.ranks)
    indices.push_back(rank.device.index.value);
  return indices;
}

std::string mesh_error(const std::vector<Host>& hosts,
                       const std::string& mesh,
                       const Request& request = {}) {
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

// The links are known, and still no order of GPUs is better for ranks that share them.
TEST(MeshPlacement, RanksThatShareGpusAreToldSo) {
  const Plan plan = mesh_plan({workstation()}, "dp=2,tp=5", {.surplus = Surplus::share});
  EXPECT_THAT(gpus_of(plan), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_EQ(plan.ranks[0].reason, "mesh: in order, since ranks share GPUs; shared by 2 ranks");
}

// Hosts that are alike are searched once, and each kind has its own order.
TEST(MeshPlacement, EachKindOfHostHasItsOwnOrder) {
  Host other = workstation();  // bridged pairs are (0, 1) and (2, 3)
  std::swap(other.gpu_links[1], other.gpu_links[2]);
  for (auto& row : other.gpu_links)
    std::swap(row[1], row[2]);
  std::vector<Host> hosts = {workstation(), other, workstation(), other};
  for (size_t i = 0; i < hosts.size(); ++i) {
    hosts[i].name = cat("n", i);
    for (Gpu& gpu : hosts[i].gpus)
      gpu.uuid.value += cat("-", i);
  }
  EXPECT_THAT(gpus_of(mesh_plan(hosts, "dp=-1,tp=2", {.nproc_per_node = 4})),
              ElementsAre(0, 2, 1, 3, 0, 1, 2, 3, 0, 2, 1, 3, 0, 1, 2, 3));
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
  EXPECT_THAT(plan.notes,
              testing::Contains("mesh dp=2,pp=2,tp=4: ranks along dp lie on several hosts"));
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
  EXPECT_THAT(mesh_error({workstation()}, "dp=3", {.nproc_per_node = 4}),
              HasSubstr("the 4 ranks there are"));
  EXPECT_THAT(mesh_error({workstation()}, "dp=0"), HasSubstr("sizes of at least 1"));
  try {
    muster::plan({.source = "test", .hosts = {workstation()}}, {.policy = "mesh"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("give --mesh dp=2,tp=2"));
  }
}

Bandwidths random_mesh_links(std::mt19937& random, size_t count, unsigned num_values) {
  Bandwidths links(count, std::vector<int64_t>(count));
  for (size_t a = 0; a < count; ++a)
    for (size_t b = 0; b < a; ++b)
      links[a][b] = links[b][a] = static_cast<int64_t>(random() % num_values);
  return links;
}

// From the last axis, which is the order in which meshes are compared.
std::vector<RingQuality> from_the_last(const Bandwidths& links,
                                       const std::vector<int>& sizes,
                                       const std::vector<size_t>& order) {
  std::vector<RingQuality> quality;
  for (const auto& pairs : mesh_neighbours(sizes)) {
    RingQuality& axis = quality.emplace_back();
    for (const auto& [a, b] : pairs)
      axis.add(links[order[a]][order[b]]);
  }
  return quality;
}

// Of each axis, the rings along it taken together.
std::vector<RingQuality> mesh_quality(const Bandwidths& links,
                                      const std::vector<int>& sizes,
                                      const std::vector<size_t>& order) {
  auto quality = from_the_last(links, sizes, order);
  std::reverse(quality.begin(), quality.end());
  return quality;
}

// Every order that could be better than `known`.
class BestMesh {
 public:
  BestMesh(const Bandwidths& links,
           const std::vector<int>& sizes,
           const std::vector<RingQuality>& known)
      : best(known), links_(links), axes_(mesh_neighbours(sizes)), to_earlier_(num_places(sizes)) {
    Axes none(axes_.size());
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      none[axis] = {INT64_MAX, 0, static_cast<int64_t>(axes_[axis].size())};
      for (const auto& [a, b] : axes_[axis])
        to_earlier_[std::max(a, b)].push_back({axis, std::min(a, b)});
    }
    for (const auto& row : links)
      fastest_ = std::max(fastest_, *std::max_element(row.begin(), row.end()));
    extend(none);
  }

  std::vector<RingQuality> best;

 private:
  struct Axis {
    int64_t slowest, total, missing;  // of its links
  };
  using Axes = std::vector<Axis>;
  struct Earlier {
    size_t axis, place;
  };

  bool could_be_better(const Axes& axes) const {
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      const int64_t most = axes[axis].total + axes[axis].missing * fastest_;
      if (axes[axis].slowest != best[axis].slowest)
        return axes[axis].slowest > best[axis].slowest;
      if (most != best[axis].total)
        return most > best[axis].total;
    }
    return false;
  }

  void extend(const Axes& axes) {
    if (!could_be_better(axes))
      return;
    if (order_.size() == to_earlier_.size()) {
      for (size_t axis = 0; axis < axes.size(); ++axis)
        best[axis] = {axes[axis].slowest, axes[axis].total};
      return;
    }
    for (size_t device = 0; device < links_.size(); ++device) {
      if (std::find(order_.begin(), order_.end(), device) != order_.end())
        continue;
      Axes longer = axes;
      for (const Earlier& earlier : to_earlier_[order_.size()]) {
        const int64_t link = links_[device][order_[earlier.place]];
        Axis& axis = longer[earlier.axis];
        axis = {std::min(axis.slowest, link), axis.total + link, axis.missing - 1};
      }
      order_.push_back(device);
      extend(longer);
      order_.pop_back();
      if (order_.empty() && to_earlier_.size() == links_.size())
        return;  // turned, each is another's beginning
    }
  }

  const Bandwidths& links_;
  const std::vector<std::vector<Neighbours>> axes_;
  std::vector<std::vector<Earlier>>
      to_earlier_;  // of each place, its neighbours that are filled before it
  int64_t fastest_ = 0;
  std::vector<size_t> order_ = {};
};

// Of few devices every order is looked at. The search for more is here asked for few.
TEST(MeshOrder, TheSearchFindsWhatTryingAllFinds) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    for (const std::vector<int>& sizes : {std::vector<int>{3, 2}, {2, 3}, {2, 2, 2}, {2, 2}}) {
      const Bandwidths links = random_mesh_links(random, 6 + num_places(sizes) / 8 * 2, 4);
      EXPECT_EQ(from_the_last(links, sizes, search_mesh_order(links, sizes)),
                from_the_last(links, sizes, best_mesh_order(links, sizes)))
          << round;
    }
  }
}

TEST(MeshOrder, UpToTwelveEqualBruteForce) {
  std::mt19937 random(7);
  for (const std::vector<int>& sizes : {std::vector<int>{3, 3},
                                        {2, 5},
                                        {5, 2},
                                        {3, 4},
                                        {4, 3},
                                        {2, 6},
                                        {6, 2},
                                        {2, 2, 3},
                                        {2, 3, 2}}) {
    for (const unsigned num_values : {2U, 5U}) {
      const Bandwidths links =
          random_mesh_links(random, std::max<size_t>(num_places(sizes), 10), num_values);
      const auto found = from_the_last(links, sizes, best_mesh_order(links, sizes));
      EXPECT_EQ(BestMesh(links, sizes, found).best, found)
          << testing::PrintToString(sizes) << num_values;
    }
  }
}

// Cliques of fast links hidden in a shuffled machine, whose other links differ a little where there
// is `noise`.
Bandwidths hidden_cliques(unsigned seed, size_t count, size_t size, unsigned noise, size_t extra) {
  std::mt19937 random(seed);
  std::vector<size_t> hidden(count + extra);
  std::iota(hidden.begin(), hidden.end(), size_t{0});
  std::shuffle(hidden.begin(), hidden.end(), random);
  Bandwidths links(hidden.size(), std::vector<int64_t>(hidden.size()));
  for (size_t a = 0; a < hidden.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const bool together = a < count && a / size == b / size;
      const int64_t link = together ? 100 : 10 + static_cast<int64_t>(random() % noise);
      links[hidden[a]][hidden[b]] = links[hidden[b]][hidden[a]] = link;
    }
  }
  return links;
}

void expect_fast_rows(const std::vector<int>& sizes, unsigned seed, unsigned noise, size_t extra) {
  const auto size = static_cast<size_t>(sizes.back());
  const Bandwidths links = hidden_cliques(seed, num_places(sizes), size, noise, extra);
  EXPECT_EQ(mesh_quality(links, sizes, best_mesh_order(links, sizes)).back().slowest, 100)
      << testing::PrintToString(sizes) << " seed " << seed << " noise " << noise << " extra "
      << extra;
}

TEST(MeshOrder, HiddenCliquesAreFound) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{2, 5}, {2, 6}, {2, 8}, {4, 4}, {3, 3}, {5, 3}})
    for (unsigned seed = 0; seed < 25; ++seed)
      expect_fast_rows(sizes, seed, 1 + seed % 2 * 4, seed % 3);
}

TEST(MeshOrder, HiddenCliquesOfUpTo64DevicesAreFound) {
  for (const std::vector<int>& sizes : {std::vector<int>{4, 8},
                                        {8, 4},
                                        {8, 8},
                                        {16, 4},
                                        {32, 2},
                                        {2, 4, 8},
                                        {4, 4, 4},
                                        {2, 2, 2, 8}})
    for (unsigned seed = 0; seed < 2; ++seed)
      expect_fast_rows(sizes, seed, 1 + seed * 4, 0);
}

// Sixteen, too many to look at every order: pairs with one fast link each, hidden in a shuffled
// machine.
TEST(MeshOrder, TheSearchFindsHiddenPairs) {
  std::mt19937 random(5);
  std::vector<size_t> hidden(16);
  std::iota(hidden.begin(), hidden.end(), size_t{0});
  std::shuffle(hidden.begin(), hidden.end(), random);
  Bandwidths links(16, std::vector<int64_t>(16, 1));
  for (size_t i = 0; i < 16; i += 2)
    links[hidden[i]][hidden[i + 1]] = links[hidden[i + 1]][hidden[i]] = 9;
  const auto quality = mesh_quality(links, {8, 2}, best_mesh_order(links, {8, 2}));
  EXPECT_EQ(quality[1].slowest, 9);
}

}  // namespace
}  // namespace muster
