// What Kineto tells of the CPU stands for what it tells of GPUs: names, and times on the clock of
// the activity files.
#include "muster/run/kernel_trace.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "muster/base/fd.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/merge_trace.h"
#include "tests/data/files.h"

namespace muster {
namespace {

// Kineto converts the processor's counter to time; clocks are read a moment apart.
constexpr int64_t kClockSlack = 5'000'000;

const ProfiledSpan* span_named(const std::vector<ProfiledSpan>& spans, const std::string& name) {
  const auto found = std::find_if(
      spans.begin(), spans.end(), [&](const ProfiledSpan& span) { return span.name == name; });
  return found == spans.end() ? nullptr : &*found;
}

TEST(KernelTrace, TimesAreOnTheActivityClock) {
  const auto a = torch::rand({64, 64});
  begin_profile(Profiled::cpu);
  const int64_t before = activity_now();
  const auto product = torch::mm(a, a);
  const int64_t after = activity_now();
  const std::vector<ProfiledSpan> spans = end_profile();
  const ProfiledSpan* const mm = span_named(spans, "aten::mm");
  ASSERT_NE(mm, nullptr);
  EXPECT_FALSE(mm->gpu.has_value());
  EXPECT_GE(mm->begin_ns, before - kClockSlack);
  EXPECT_LE(mm->end_ns, after + kClockSlack);
  EXPECT_LE(mm->begin_ns, mm->end_ns);
}

TEST(KernelTrace, EachStreamOfAGpuIsATrack) {
  const test::TempFolder folder;
  const std::string path = event_path(folder.path(), 0, 0);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  ActivityHeader header{};
  header.world_size = 1;
  {
    TraceEventFile events(path, header);
    add_kernels(
        {{.name = "gemm", .gpu = 0, .stream = 7, .begin_ns = 1'000'000, .end_ns = 3'000'000},
         {.name = "aten::mm", .gpu = {}, .stream = 0, .begin_ns = 0, .end_ns = 1},
         {.name = "copy", .gpu = 0, .stream = 20, .begin_ns = 2'000'000, .end_ns = 4'000'000},
         {.name = "relu", .gpu = 0, .stream = 7, .begin_ns = 3'000'000, .end_ns = 3'500'000}},
        events);
  }
  ASSERT_TRUE(merge_trace(folder.path()));
  std::map<std::string, double> length;
  std::map<std::string, int64_t> track;
  std::map<int64_t, std::string> name_of_track;
  const auto trace = nlohmann::json::parse(read_file(folder / "trace.json"));
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name")
      name_of_track[event["tid"]] = event["args"]["name"];
    if (event["ph"] != "X")
      continue;
    length[event["name"]] = event["dur"];
    track[event["name"]] = event["tid"];
  }
  EXPECT_THAT(length,
              ::testing::ElementsAre(::testing::Pair("copy", 2000),
                                     ::testing::Pair("gemm", 2000),
                                     ::testing::Pair("relu", 500)))
      << "operators of the CPU are traced otherwise";
  EXPECT_EQ(name_of_track[track["gemm"]], "GPU 0 stream 7");
  EXPECT_EQ(name_of_track[track["copy"]], "GPU 0 stream 20");
  EXPECT_EQ(track["gemm"], track["relu"]);
}

TEST(KernelTraceOnAGpu, SeesKernels) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "no GPU";
  const auto a = torch::rand({256, 256}, torch::kCUDA);
  torch::mm(a, a);
  torch::cuda::synchronize();
  begin_profile(Profiled::gpus);
  const int64_t before = activity_now();
  torch::mm(a, a);
  torch::cuda::synchronize();
  const int64_t after = activity_now();
  const auto spans = end_profile();
  const auto kernel = std::find_if(
      spans.begin(), spans.end(), [](const ProfiledSpan& span) { return span.gpu == 0; });
  ASSERT_NE(kernel, spans.end());
  EXPECT_GE(kernel->begin_ns, before - kClockSlack);
  EXPECT_LE(kernel->end_ns, after + kClockSlack);
}

}  // namespace
}  // namespace muster
