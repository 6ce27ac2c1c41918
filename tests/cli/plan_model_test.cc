#include "muster/cli/plan_model.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/placement/plan_json.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr const char* kSizes = "layers=2,width=64,heads=4,context=8,vocabulary=65,batch=2";

// Two ranks on GPUs of 10 and 8 GiB; with `shared` both on the first.
struct TwoGpus {
  Inventory inventory;
  Plan plan;
  explicit TwoGpus(bool shared = false) {
    Host host;
    for (int i = 0; i < 2; ++i) {
      Gpu gpu;
      gpu.uuid.value = i == 0 ? "GPU-a" : "GPU-b";
      gpu.memory_total_bytes = (i == 0 ? 10ULL : 8ULL) << 30;
      host.gpus.push_back(gpu);
      RankPlan rank;
      rank.rank = rank.local_rank = i;
      rank.host = "box";
      rank.device = {.kind = DeviceAssignment::Kind::gpu,
                     .uuid = shared ? GpuUuid{"GPU-a"} : gpu.uuid};
      plan.ranks.push_back(rank);
    }
    inventory.hosts.push_back(host);
  }
};

int64_t device_bytes(const PlanModelFlags& flags, const TwoGpus& job) {
  const std::string json = to_about_model(flags, true)(job.inventory, job.plan);
  return nlohmann::json::parse(json)["device_bytes"];
}

std::string plan_refusal(const PlanModelFlags& flags,
                         const Inventory& inventory = {},
                         const Plan& plan = {}) {
  try {
    to_about_model(flags, false)(inventory, plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(PlanModel, TheSmallestGpuCountsAndItsSharers) {
  EXPECT_EQ(device_bytes({.model = kSizes}, TwoGpus()), int64_t{8} << 30);
  EXPECT_EQ(device_bytes({.model = kSizes}, TwoGpus(true)), int64_t{5} << 30);
  EXPECT_EQ(device_bytes({.model = kSizes, .device_memory = "3GiB"}, TwoGpus()), int64_t{3} << 30);
}

TEST(PlanModel, ATableOfWays) {
  const TwoGpus job;
  const std::string table = to_about_model({.model = kSizes}, false)(job.inventory, job.plan);
  for (const char* part : {"model: 108928 parameters, fp32, AdamW, 2 × 8 tokens",
                           "8.0 GiB",
                           "\nDDP ",
                           "\nZeRO-2 ",
                           "\nfully sharded ",
                           "\ntensor parallel ",
                           "\npipeline 1F1B ",
                           "most layers"})
    EXPECT_THAT(table, HasSubstr(part));
}

TEST(PlanModel, ThePlansJsonCanStillBeRun) {
  const TwoGpus job;
  const std::string json =
      plan_to_json(job.plan, to_about_model({.model = kSizes}, true)(job.inventory, job.plan));
  EXPECT_EQ(nlohmann::json::parse(json)["model"]["ways"].size(), 6U);
  EXPECT_EQ(plan_from_json(json, "test"), plan_from_json(plan_to_json(job.plan), "test"));
}

TEST(PlanModel, WhatSaysNothingIsRefused) {
  EXPECT_THAT(plan_refusal({.model = "layers"}),
              HasSubstr("--model: expected NAME=VALUE, got 'layers'"));
  EXPECT_THAT(plan_refusal({.device_memory = "3GiB"}), HasSubstr("expected --model beside it"));
  for (const char* bad : {"x", "0", "-1", "2000000GiB"})
    EXPECT_THAT(plan_refusal({.model = kSizes, .device_memory = bad}),
                HasSubstr("--device-memory: expected a size"));
  EXPECT_THAT(plan_refusal({.model = kSizes}, {}, {.ranks = {RankPlan{}}}),
              HasSubstr("add --device-memory 80GiB"));
  EXPECT_FALSE(to_about_model({}, false));
}

}  // namespace
}  // namespace muster
