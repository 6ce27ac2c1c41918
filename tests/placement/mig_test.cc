// GPUs that are split by MIG are used by their instances only.
#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"
#include "muster/placement/planner.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/usable_gpus.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// GPU 0 whole, GPU 1 split into 3g, 2g and 1g, each with its memory.
Host split_host() {
  Host host = gpu_host(0, 2, "NVIDIA A100-SXM4-40GB");
  for (Gpu& gpu : host.gpus)
    gpu.memory_total_bytes = gpu.memory_free_bytes = 40 * kGiB;
  host.gpus[1].mig_enabled = true;
  host.gpus[1].mig = {{{"MIG-aaaa0000-0000-5000-8000-000000000001"}, "3g.20gb", 20 * kGiB},
                      {{"MIG-aaab0000-0000-5000-8000-000000000002"}, "2g.10gb", 10 * kGiB},
                      {{"MIG-bbbb0000-0000-5000-8000-000000000003"}, "1g.5gb", 5 * kGiB}};
  return host;
}

Plan mig_plan(const Request& request, const Host& host = split_host()) {
  return muster::plan({.source = "test", .hosts = {host}}, request);
}

std::vector<std::string> device_ids(const Plan& plan) {
  std::vector<std::string> all;
  for (const RankPlan& rank : plan.ranks)
    all.push_back(rank.device.id().substr(0, 8));
  return all;
}

std::string mig_error(const Request& request) {
  try {
    mig_plan(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Mig, AnInstanceIsADeviceOfItsOwn) {
  const Plan plan = mig_plan({});
  EXPECT_THAT(device_ids(plan), ElementsAre("GPU-0000", "MIG-aaaa", "MIG-aaab", "MIG-bbbb"));
  const DeviceAssignment& device = plan.ranks[2].device;
  EXPECT_EQ(device.uuid.value, "MIG-aaab0000-0000-5000-8000-000000000002");
  EXPECT_EQ(device.index.value, 1);
  EXPECT_EQ(device.model, "NVIDIA A100-SXM4-40GB MIG 2g.10gb");
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "test"), plan);
}

TEST(Mig, EachRankSeesItsInstanceAlone) {
  const Plan plan = mig_plan({});
  EXPECT_EQ(plan.visibility, Visibility::own);
  EXPECT_EQ(visibility_variables(plan, plan.ranks[1]).at("CUDA_VISIBLE_DEVICES"),
            "MIG-aaaa0000-0000-5000-8000-000000000001");
  EXPECT_EQ(plan.ranks[3].device.ordinal.value, 0);
  EXPECT_THAT(plan.notes,
              ElementsAre("a process can use only one MIG instance: each rank sees only its own"));
  EXPECT_EQ(mig_plan({.gpus = "0"}).visibility, Visibility::job) << "no instance, no change";
  EXPECT_THAT(mig_error({.visibility = Visibility::all}),
              HasSubstr("--visibility all: expected whole GPUs"));
}

TEST(Mig, Selection) {
  EXPECT_THAT(device_ids(mig_plan({.gpus = "1"})), ElementsAre("MIG-aaaa", "MIG-aaab", "MIG-bbbb"));
  EXPECT_THAT(device_ids(mig_plan({.gpus = "GPU-0001"})),
              ElementsAre("MIG-aaaa", "MIG-aaab", "MIG-bbbb"));
  EXPECT_THAT(device_ids(mig_plan({.gpus = "MIG-B,0,MIG-aaaa"})),
              ElementsAre("MIG-bbbb", "GPU-0000", "MIG-aaaa"));
  EXPECT_THAT(device_ids(mig_plan({.gpus = "!MIG-aaab"})),
              ElementsAre("GPU-0000", "MIG-aaaa", "MIG-bbbb"));
  EXPECT_THAT(device_ids(mig_plan({.gpus = "!1"})), ElementsAre("GPU-0000"));
  EXPECT_THAT(device_ids(mig_plan({.gpus = "mem<20GiB"})), ElementsAre("MIG-aaab", "MIG-bbbb"));
  EXPECT_THAT(device_ids(mig_plan({.gpus = "model=mig 1g"})), ElementsAre("MIG-bbbb"));
  EXPECT_THAT(mig_error({.gpus = "MIG-aaa"}), HasSubstr("which fits MIG-aaaa"));
  EXPECT_THAT(mig_error({.gpus = "MIG-c"}),
              HasSubstr("the UUID of a MIG instance that can be used, got MIG-c; host "
                        "n0 has GPUs 0, 1 (3 MIG instances)"));
  EXPECT_THAT(mig_error({.gpus = "1,MIG-bbbb"}),
              HasSubstr("each GPU once, got MIG-bbbb0000 of GPU 1 again"));
}

TEST(Mig, AnIndexInAMapIsTheNextInstance) {
  EXPECT_THAT(device_ids(mig_plan({.map = {1, 0, 1}})),
              ElementsAre("MIG-aaaa", "GPU-0000", "MIG-aaab"));
  EXPECT_THAT(mig_error({.map = {1, 1, 1, 1}}), HasSubstr("a GPU of its own for each rank"));
}

TEST(Mig, MemoryIsItsOwn) {
  EXPECT_THAT(device_ids(mig_plan({.rank_memory_bytes = {8 * kGiB, 4 * kGiB, 20 * kGiB}})),
              ElementsAre("MIG-aaab", "MIG-bbbb", "MIG-aaaa", "GPU-0000"));
  Host host = split_host();
  host.gpus[1].memory_free_bytes = 38 * kGiB;
  EXPECT_EQ(free_memory_bytes(host, {1, {}, 2}), 3 * kGiB)
      << "at least so much: nobody knows whose it is";
}

TEST(Mig, ScoresGoByInstanceOrItsModel) {
  const std::map<std::string, double> scores = {{"0", 7},
                                                {"1", 100},
                                                {"MIG-bbbb0000-0000-5000-8000-000000000003", 9},
                                                {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", 3},
                                                {"NVIDIA A100-SXM4-40GB MIG 2g.10gb", 2}};
  EXPECT_THAT(device_ids(mig_plan({.policy = "fastest", .scores = scores})),
              ElementsAre("MIG-bbbb", "GPU-0000", "MIG-aaaa", "MIG-aaab"));
}

TEST(Mig, OnWithoutAnInstanceIsLeftOut) {
  Host host = split_host();
  host.gpus[1].mig.clear();
  const Plan plan = mig_plan({}, host);
  EXPECT_THAT(device_ids(plan), ElementsAre("GPU-0000"));
  EXPECT_THAT(plan.notes, ElementsAre("left out GPU 1: MIG is on and there is no instance"));
}

TEST(Mig, InheritedMaskOfInstances) {
  EXPECT_THAT(device_ids(mig_plan({.masks = {.cuda = "MIG-bbbb,MIG-aaaa"}})),
              ElementsAre("MIG-bbbb", "MIG-aaaa"));
  const Plan cut = mig_plan({.masks = {.cuda = "MIG-bbbb,MIG-none,MIG-aaaa"}});
  EXPECT_THAT(device_ids(cut), ElementsAre("MIG-bbbb"));
  EXPECT_THAT(cut.notes,
              Contains(HasSubstr("shows 1 of 3 MIG instances (entry 2, 'MIG-none', hides")));
  EXPECT_THAT(usable_gpus(split_host(), {.cuda = "MIG-bbbb,MIG-bbbb"}).gpus, IsEmpty());
  EXPECT_THAT(device_ids(mig_plan({.masks = {.cuda = "1"}})),
              ElementsAre("MIG-aaaa", "MIG-aaab", "MIG-bbbb"));
}

TEST(Mig, AGpuIsNamedOnceWhateverTheOrderOfItsInstances) {
  Host host = split_host();
  host.gpus[0].mig_enabled = true;
  host.gpus[0].mig = {{{"MIG-cccc0000-0000-5000-8000-000000000004"}, "3g.20gb", 20 * kGiB}};
  const UsableGpus usable = usable_gpus(host, {.cuda = "MIG-aaaa,MIG-cccc,MIG-bbbb"});
  EXPECT_THAT(describe(host, usable), HasSubstr("host n0 has GPUs 1, 0 (3 MIG instances)"));
}

TEST(Mig, TopologyWantsWholeGpus) {
  EXPECT_THAT(mig_error({.policy = "topology"}),
              HasSubstr("expected whole GPUs, got MIG instances"));
}

TEST(Mig, Table) {
  EXPECT_THAT(plan_table(mig_plan({.gpus = "MIG-b"})),
              HasSubstr("GPU 1  MIG-bbbb0000  NVIDIA A100-SXM4-40GB MIG 1g.5gb"));
}

}  // namespace
}  // namespace muster
