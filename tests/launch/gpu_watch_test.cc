#include "muster/launch/gpu_watch.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Plan plan_of_gpus(int first, int count) {
  Plan plan;
  for (int i = 0; i < count; ++i) {
    RankPlan rank{.rank = i, .local_rank = i};
    rank.device.kind = DeviceAssignment::Kind::gpu;
    rank.device.uuid.value = cat("GPU-", first + i);
    plan.ranks.push_back(rank);
  }
  return plan;
}

Host host_of_gpus(int count) {
  Host host;
  host.gpus.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    Gpu& gpu = host.gpus[static_cast<size_t>(i)];
    gpu.index.value = i;
    gpu.uuid.value = cat("GPU-", i);
    gpu.pci.value = cat("0000:0", i, ":00.0");
    gpu.ecc_uncorrected_errors = 2;
  }
  return host;
}

std::string gone_bad(const Host& now, const std::vector<XidError>& xids = {}) {
  return describe(gpus_gone_bad(plan_of_gpus(0, 2), 0, host_of_gpus(3), now, xids));
}

TEST(GpuWatch, GpusThatAreAsTheyWereAreNotBad) {
  EXPECT_EQ(gone_bad(host_of_gpus(3)), "") << "errors that were there before the job";
}

TEST(GpuWatch, ErrorsThatHaveGrownAreCounted) {
  Host now = host_of_gpus(3);
  now.gpus[1].ecc_uncorrected_errors = 5;
  now.gpus[1].health = "5 uncorrected ECC errors since the driver loaded";
  EXPECT_EQ(gone_bad(now), "GPU 1 (GPU-1): 3 uncorrected memory errors since the job began");
}

TEST(GpuWatch, OtherGpusOfTheHostAreNotTheJobs) {
  Host now = host_of_gpus(3);
  now.gpus[2].ecc_uncorrected_errors = 5;
  EXPECT_EQ(gone_bad(now), "");
}

TEST(GpuWatch, AGpuThatIsLostOrGoneIsNamed) {
  Host now = host_of_gpus(3);
  now.gpus[0] = Gpu{.index = {0}, .health = "GPU is lost"};
  EXPECT_EQ(gone_bad(now), "GPU 0 (GPU-0): GPU is lost");
  now = host_of_gpus(0);
  now.gpu_note = "the NVIDIA driver does not answer: Unknown Error";
  EXPECT_THAT(gone_bad(now),
              HasSubstr("GPU 1 (GPU-1): the driver does not list it any more (the NVIDIA driver "
                        "does not answer: Unknown Error)"));
}

TEST(GpuWatch, ARepairThatWaitsForAResetIsOne) {
  Host now = host_of_gpus(3);
  now.gpus[1].repair_pending = true;
  EXPECT_THAT(gone_bad(now),
              HasSubstr("GPU 1 (GPU-1): rows or pages of its memory are to be replaced"));
}

TEST(GpuWatch, TheKernelsLogCountsWhereItIsAboutTheHardware) {
  const std::vector<XidError> xids = {
      {.pci = {"0000:00:00.0"}, .number = 31, .text = "MMU fault"},
      {.pci = {"0000:01:00.0"}, .number = 79, .text = "fallen off the bus"}};
  EXPECT_EQ(gone_bad(host_of_gpus(3), xids),
            "GPU 1 (GPU-1): Xid 79 in the kernel's log (fallen off the bus)");
}

TEST(GpuWatch, APlanWithoutGpusIsNotLookedAt) {
  Plan plan = plan_of_gpus(0, 1);
  plan.ranks[0].device = {};
  EXPECT_THAT(GpuWatch(host_of_gpus(1)).look(plan, 0), IsEmpty());
}

TEST(GpuWatch, ThePlannerLeavesThemOut) {
  const BadGpu bad{.index = {1}, .uuid = {"GPU-1"}, .what = "GPU is lost"};
  Inventory inventory;
  inventory.hosts = {host_of_gpus(2)};
  const auto left = without_busy(inventory, reasons_of({bad}));
  EXPECT_EQ(left.hosts[0].gpus[0].health, kHealthy);
  EXPECT_EQ(left.hosts[0].gpus[1].health, "GPU is lost");
}

}  // namespace
}  // namespace muster
