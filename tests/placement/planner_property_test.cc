// What holds for every plan, tried on random machines and requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/visible_devices.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/planner.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using Random = std::mt19937;

int below(Random& random, int limit) {
  return static_cast<int>(random() % static_cast<unsigned>(limit));
}

Inventory random_inventory(Random& random) {
  std::vector<int> counts(1 + static_cast<size_t>(below(random, 4)));
  for (int& count : counts) count = below(random, 4) == 0 ? 0 : below(random, 9);
  Inventory inventory = machine(counts);
  for (Host& host : inventory.hosts) {
    host.cpu_slots = 1 + below(random, 4);
    for (Gpu& gpu : host.gpus) {
      if (below(random, 8) == 0) gpu.health = "GPU is lost";
      if (below(random, 5) == 0) gpu.model = "Other GPU";
    }
    std::shuffle(host.gpus.begin(), host.gpus.end(), random);
  }
  return inventory;
}

std::string random_list(Random& random) {
  std::vector<int> indices = {0, 1, 2, 3, 4, 5, 6, 7};
  std::shuffle(indices.begin(), indices.end(), random);
  indices.resize(1 + static_cast<size_t>(below(random, 4)));
  return join(indices, ",");
}

Request random_request(Random& random) {
  Request request;
  if (below(random, 2) == 0) request.nproc_per_node = 1 + below(random, 12);
  if (below(random, 3) == 0) request.gpus = random_list(random);
  if (below(random, 4) == 0) request.visible_mask = random_list(random);
  if (below(random, 5) == 0) {
    for (int i = 0; i < 3; ++i) request.map.push_back(below(random, 4));
  }
  request.cpu_only = below(random, 12) == 0;
  request.gpu_only = below(random, 12) == 0;
  request.surplus = static_cast<Surplus>(below(random, 4));
  request.visibility = static_cast<Visibility>(below(random, 4));
  return request;
}

const Host& host_of(const Inventory& inventory, const RankPlan& rank) {
  return inventory.hosts.at(static_cast<size_t>(rank.host_index));
}

void check_numbering(const Inventory& inventory, const Plan& plan) {
  ASSERT_FALSE(plan.ranks.empty());
  std::map<int, int> seen;  // host → ranks so far
  int last_host = 0;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const RankPlan& rank = plan.ranks[i];
    ASSERT_EQ(rank.rank, static_cast<int>(i));
    ASSERT_GE(rank.host_index, last_host);
    last_host = rank.host_index;
    ASSERT_EQ(rank.local_rank, seen[rank.host_index]++);
    ASSERT_EQ(rank.host, host_of(inventory, rank).name);
    ASSERT_FALSE(rank.reason.empty());
  }
}

// Every device is a healthy GPU of its host or a CPU slot, and used once unless sharing was asked for.
void check_devices(const Inventory& inventory, const Request& request, const Plan& plan) {
  std::set<std::string> used;
  for (const RankPlan& rank : plan.ranks) {
    const bool fresh = used.insert(cat(rank.host_index, " ", rank.device.id())).second;
    const bool cuda = rank.device.kind == DeviceAssignment::Kind::cuda;
    ASSERT_TRUE(fresh || (cuda && request.surplus == Surplus::share)) << rank.device.id();
    if (!cuda) continue;
    ASSERT_FALSE(request.cpu_only);
    const auto& gpus = host_of(inventory, rank).gpus;
    const auto gpu = std::find_if(gpus.begin(), gpus.end(),
                                  [&](const Gpu& candidate) { return candidate.uuid == rank.device.uuid; });
    ASSERT_NE(gpu, gpus.end());
    ASSERT_EQ(gpu->index, rank.device.index);
    ASSERT_EQ(gpu->health, kHealthy);
  }
}

// A process with the rank's CUDA_VISIBLE_DEVICES finds the rank's GPU under the rank's ordinal.
void check_ordinals(const Inventory& inventory, const Request& request, const Plan& plan) {
  for (const RankPlan& rank : plan.ranks) {
    const auto mask = cuda_visible_devices(plan, rank);
    if (rank.device.kind == DeviceAssignment::Kind::cpu) {
      ASSERT_TRUE(!mask || mask->empty());
      continue;
    }
    const auto& gpus = host_of(inventory, rank).gpus;
    std::vector<int> all(gpus.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    const std::string effective = mask ? *mask : request.visible_mask.value_or(join(all, ","));
    const auto visible = visible_devices(gpus, effective);
    const auto ordinal = static_cast<size_t>(rank.device.ordinal.value);
    ASSERT_LT(ordinal, visible.gpus.size());
    ASSERT_EQ(gpus[visible.gpus[ordinal]].uuid, rank.device.uuid);
    if (plan.visibility != Visibility::job) continue;
    ASSERT_EQ(rank.device.ordinal.value, rank.local_rank);
  }
}

TEST(PlannerProperties, HoldOnRandomMachines) {
  int planned = 0;
  int refused = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    Random random(seed);
    const Inventory inventory = random_inventory(random);
    const Request request = random_request(random);
    Plan plan;
    try {
      plan = make_plan(inventory, request);
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unavailable);
      ++refused;
      continue;
    }
    ++planned;
    check_numbering(inventory, plan);
    check_devices(inventory, request, plan);
    check_ordinals(inventory, request, plan);
    ASSERT_EQ(make_plan(inventory, request), plan) << "the same request gives the same plan";
    ASSERT_EQ(plan_from_json(plan_to_json(plan), "test"), plan);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(planned, 1000) << "the requests are not all nonsense";
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace muster
