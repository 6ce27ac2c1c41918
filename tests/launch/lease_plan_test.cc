#include "muster/launch/lease_plan.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/device/scratch.h"
#include "tests/launch/lease_process.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Ranks on these GPUs ("GPU-<n>"; -1: the CPU), all on one host.
Plan plan_of(const std::vector<int>& gpus) {
  Plan plan;
  for (size_t i = 0; i < gpus.size(); ++i) {
    RankPlan rank{.rank = static_cast<int>(i), .local_rank = static_cast<int>(i)};
    if (gpus[i] >= 0) {
      rank.device.kind = DeviceAssignment::Kind::gpu;
      rank.device.uuid.value = cat("GPU-", gpus[i]);
    }
    plan.ranks.push_back(rank);
  }
  return plan;
}

// The first `count` of `total` GPUs that are not to be left out, as `free:2` would have them.
std::function<Plan(const BusyGpus&)> any(int count, int total) {
  return [=](const BusyGpus& busy) {
    std::vector<int> gpus;
    for (int gpu = 0; gpu < total && static_cast<int>(gpus.size()) < count; ++gpu) {
      if (!busy.contains(GpuUuid{cat("GPU-", gpu)}))
        gpus.push_back(gpu);
    }
    if (static_cast<int>(gpus.size()) < count) {
      throw Error(ErrorCode::unavailable,
                  cat("--gpus: expected ", count, " GPUs, got ", gpus.size(), "\n  free:2\n  ^"));
    }
    return plan_of(gpus);
  };
}

std::vector<std::string> names(const std::vector<Lease>& leases) {
  std::vector<std::string> names;
  for (const Lease& lease : leases)
    names.push_back(lease.gpu().value);
  return names;
}

class LeasePlanTest : public testing::Test {
 protected:
  LeaseFolder folder() const { return LeaseFolder({.folder = scratch_.path() + "/muster"}); }

  ScratchFolder scratch_;
};

TEST_F(LeasePlanTest, WishesNameEachGpuOnce) {
  const auto wishes = lease_wishes(plan_of({3, 1, -1, 3}));
  ASSERT_THAT(wishes, SizeIs(2));
  EXPECT_EQ(wishes[0].gpu.value, "GPU-1");
  EXPECT_EQ(wishes[1].gpu.value, "GPU-3");
  EXPECT_EQ(wishes[1].units, kWholeGpu);
  Plan simulated = plan_of({0});
  simulated.simulated = true;
  EXPECT_THAT(lease_wishes(simulated), IsEmpty());
  EXPECT_THAT(lease_wishes(plan_of({0}), 1), IsEmpty());
}

TEST_F(LeasePlanTest, CpuRanksNeedNone) {
  const LeasedPlan leased =
      plan_with_leases(folder(), [](const BusyGpus&) { return plan_of({-1, -1}); }, {}, {});
  EXPECT_THAT(leased.leases, IsEmpty());
  EXPECT_EQ(lease_variable(leased.leases), "");
}

TEST_F(LeasePlanTest, PlansAroundBusyGpus) {
  const auto busy = folder().try_take({"GPU-1"});
  const LeasedPlan leased = plan_with_leases(folder(), any(2, 4), {}, {.replan = true});
  EXPECT_THAT(names(leased.leases), ElementsAre("GPU-0", "GPU-2"));
  EXPECT_EQ(leased.plan.ranks.at(1).device.uuid.value, "GPU-2");
  EXPECT_EQ(lease_variable(leased.leases), cat(leased.leases[0].fd(), ",", leased.leases[1].fd()));
}

TEST_F(LeasePlanTest, CertainGpusAreNotReplaced) {
  const auto busy = folder().try_take({"GPU-1"}, kWholeGpu, {.job = "4f2a", .program = "train"});
  try {
    plan_with_leases(folder(), any(2, 4), {}, {.replan = false});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(),
                HasSubstr("expected free GPUs, got GPU-1 held by job 4f2a (train, pid "));
    EXPECT_THAT(error.what(), HasSubstr("--wait"));
  }
  EXPECT_THAT(folder().holders({"GPU-0"}), IsEmpty());
}

TEST_F(LeasePlanTest, SaysWhatThePlannerSaidWithoutThem) {
  const auto busy = folder().try_take({"GPU-1"});
  try {
    plan_with_leases(folder(), any(2, 2), {}, {.replan = true});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("(without them: --gpus: expected 2 GPUs, got 1)"));
  }
}

TEST_F(LeasePlanTest, APlannersOwnErrorStays) {
  try {
    plan_with_leases(folder(), any(3, 2), {}, {.replan = true, .wait = kWaitForever});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--gpus: expected 3 GPUs, got 2\n  free:2\n  ^");
  }
}

TEST_F(LeasePlanTest, WaitsUntilTheHolderEnds) {
  LeaseProcess holder([&] {
    static const auto lease = folder().try_take({"GPU-0"});
    return std::string(lease ? "taken" : "refused");
  });
  ASSERT_EQ(holder.line(), "taken");
  std::vector<std::string> told;
  const LeasePlanOptions options{.replan = true,
                                 .wait = kWaitForever,
                                 .poll = std::chrono::milliseconds(1),
                                 .on_wait = [&](const std::string& line) {
                                   told.push_back(line);
                                   holder.kill();
                                 }};
  const LeasedPlan leased = plan_with_leases(folder(), any(1, 1), {}, options);
  EXPECT_THAT(names(leased.leases), ElementsAre("GPU-0"));
  EXPECT_THAT(told, ElementsAre(HasSubstr("waiting for GPUs: GPU-0 held by ")));
}

TEST_F(LeasePlanTest, WaitsOnlySoLong) {
  const auto busy = folder().try_take({"GPU-0"});
  const LeasePlanOptions options{.wait = std::chrono::milliseconds(3),
                                 .poll = std::chrono::milliseconds(1)};
  try {
    plan_with_leases(folder(), any(1, 1), {}, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("after waiting 3ms"));
  }
}

// A planner that repeats a busy GPU whatever it is told must not be asked for ever.
TEST_F(LeasePlanTest, AStubbornPlannerEnds) {
  const auto busy = folder().try_take({"GPU-0"});
  EXPECT_THROW(plan_with_leases(
                   folder(), [](const BusyGpus&) { return plan_of({0}); }, {}, {.replan = true}),
               Error);
}

// Six launchers at once, each wanting any two of eight GPUs: four get two each, no GPU is had
// twice.
TEST_F(LeasePlanTest, LaunchersAtOnceGetDifferentGpus) {
  const auto launch = [&] {
    static std::vector<Lease> kept;
    try {
      LeasedPlan leased = plan_with_leases(folder(), any(2, 8), {}, {.replan = true});
      kept = std::move(leased.leases);
      return join(names(kept), " ");
    } catch (const Error&) {
      return std::string("none");
    }
  };
  LeaseProcess a(launch), b(launch), c(launch), d(launch), e(launch), f(launch);
  std::vector<std::string> gpus;
  int refused = 0;
  for (LeaseProcess* process : {&a, &b, &c, &d, &e, &f}) {
    const std::string line = process->line();
    refused += line == "none" ? 1 : 0;
    if (line != "none") {
      for (const std::string& gpu : split(line, ' '))
        gpus.push_back(gpu);
    }
  }
  EXPECT_EQ(refused, 2);
  EXPECT_THAT(gpus,
              testing::UnorderedElementsAre(
                  "GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"));
}

TEST(WithoutBusy, BusyGpusAreLeftOutWithTheReason) {
  Inventory inventory;
  inventory.hosts.resize(1);
  inventory.hosts[0].gpus.resize(2);
  inventory.hosts[0].gpus[0].uuid.value = "GPU-0";
  inventory.hosts[0].gpus[1].uuid.value = "GPU-1";
  inventory.hosts[0].gpus[1].health = "GPU is lost";
  const Inventory left =
      without_busy(inventory, {{{"GPU-0"}, "held by job 1"}, {{"GPU-1"}, "held by job 2"}});
  EXPECT_EQ(left.hosts[0].gpus[0].health, "held by job 1");
  EXPECT_EQ(left.hosts[0].gpus[1].health, "GPU is lost");
}

}  // namespace
}  // namespace muster
