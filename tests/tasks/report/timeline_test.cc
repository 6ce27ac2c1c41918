#include "muster/tasks/report/timeline.h"

#include <gmock/gmock.h>

#include <random>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/tasks/report/timeline_rows.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

TaskResult ran(const TaskAttempt& attempt, TaskState state = TaskState::done) {
  return {.state = state, .attempts = {attempt}};
}

std::vector<std::string> labels_of(const Timeline& timeline) {
  std::vector<std::string> labels;
  for (const TimelineRow& row : timeline.rows)
    labels.push_back(row.host + " " + row.label);
  return labels;
}

TEST(Timeline, ARowADeviceGpusBeforeCpus) {
  const Timeline timeline = timeline_of({ran({.host = "n1", .began = 0, .ended = 2}),
                                         ran({.host = "n1", .began = 1, .ended = 3}),
                                         ran({.host = "n1", .began = 2, .ended = 3}),
                                         ran({.host = "x", .gpu_indices = {5}, .ended = 4.0})},
                                        machine({2, 1}));
  EXPECT_THAT(
      labels_of(timeline),
      testing::ElementsAre("n0 GPU 0", "n0 GPU 1", "n1 GPU 0", "n1 CPU 0", "n1 CPU 1", "x GPU 5"));
  EXPECT_EQ(timeline.rows[0].detail, "Test GPU");
  EXPECT_EQ(timeline.rows[3].bars.size(), 2U);
  EXPECT_DOUBLE_EQ(timeline.rows[3].busy, 0.75);
  EXPECT_DOUBLE_EQ(timeline.end, 4);
}

TEST(Timeline, PartsOfAGpuAreSideBySide) {
  const auto part = [](double began, double ended, double fraction) {
    return ran({.host = "a",
                .gpu_indices = {0},
                .gpu_fraction = fraction,
                .began = began,
                .ended = ended});
  };
  const Timeline timeline =
      timeline_of({part(0, 4, 0.5), part(1, 3, 0.25), part(2, 5, 0.25), part(3, 5, 0.25)}, {});
  ASSERT_EQ(timeline.rows.size(), 1U);
  std::vector<double> tops;
  for (const TimelineBar& bar : timeline.rows[0].bars)
    tops.push_back(bar.top);
  EXPECT_THAT(tops, testing::ElementsAre(0, 0.5, 0.75, 0.5));
}

TEST(Timeline, PartsThatFitNeverOverlapWhereTheyCouldBeApart) {
  std::mt19937 random(7);
  std::vector<TaskResult> results;
  for (int i = 0; i < 400; ++i) {  // four quarters, each busy with one after the other
    const double began = i / 4 + (i % 4) * 0.2;
    results.push_back(ran({.host = "a", .gpu_indices = {0}, .gpu_fraction = 0.25, .began = began}));
    results.back().attempts[0].ended = began + 0.1 * static_cast<double>(1 + random() % 9);
  }
  const Timeline timeline = timeline_of(results, {});
  const auto& bars = timeline.rows[0].bars;
  for (size_t i = 0; i < bars.size(); ++i) {
    for (size_t j = i + 1; j < bars.size(); ++j) {
      const bool same_time = bars[j].began < bars[i].ended && bars[i].began < bars[j].ended;
      EXPECT_TRUE(!same_time || bars[i].top != bars[j].top) << i << " " << j;
    }
  }
}

TEST(Timeline, MigInstancesHaveRowsOfTheirOwn) {
  Inventory inventory = machine({1});
  inventory.hosts[0].gpus[0].mig_enabled = true;
  const Timeline timeline = timeline_of(
      {ran({.host = "n0", .devices = {"MIG-11111111-1"}, .gpu_indices = {0}, .ended = 1.0}),
       ran({.host = "n0", .devices = {"MIG-22222222-1"}, .gpu_indices = {0}, .ended = 1.0})},
      inventory);
  EXPECT_THAT(labels_of(timeline),
              testing::ElementsAre("n0 GPU 0 MIG-11111111", "n0 GPU 0 MIG-22222222"));
}

TEST(Timeline, BarsSayHowTheyEnded) {
  const std::vector<Task> tasks = {{.name = "good", .parameters = {{"lr", "0.1"}}},
                                   {.name = "bad"},
                                   {.name = "slow"},
                                   {.name = "now"},
                                   {.name = "killed"},
                                   {.name = "never"}};
  const std::string html = timeline_html(
      tasks,
      {ran({.host = "a", .gpu_indices = {0, 1}, .began = 0, .ended = 1}),
       ran({.attempt = 1, .host = "a", .gpu_indices = {0}, .began = 1, .ended = 90, .exit_code = 3},
           TaskState::failed),
       ran({.host = "a",
            .gpu_indices = {1},
            .began = 1,
            .ended = 9,
            .signal = 9,
            .timed_out = true},
           TaskState::failed),
       ran({.host = "a", .began = 5}, TaskState::running),
       ran({.host = "a", .began = 1, .ended = 2, .lost = true}, TaskState::waiting),
       {.state = TaskState::skipped}},
      {},
      "a run");
  EXPECT_THAT(
      html, HasSubstr("6 tasks, 1 waiting, 1 running, 1 done, 2 failed, 1 skipped; 1m30s in all"));
  EXPECT_THAT(
      html, HasSubstr("<title>good\nlr = 0.1\na: GPU 0,1\nfrom 0ms to 1.0s (1.0s)\ndone</title>"));
  EXPECT_THAT(html, HasSubstr("restart 1\nfrom 1.0s to 1m30s (1m29s)\nexit code 3</title>"));
  EXPECT_THAT(html, HasSubstr("time limit</title>"));
  EXPECT_THAT(html, HasSubstr("from 1.0s to 2.0s (1.0s)\nlost with its run or host</title>"));
  EXPECT_THAT(html, HasSubstr("CPU 0"));
  EXPECT_THAT(html, Not(HasSubstr("CPU 1"))) << "what was lost is over";
  EXPECT_THAT(html, HasSubstr("from 5.0s (1m25s)\nrunning</title>"));
}

TEST(Timeline, TextIsEscaped) {
  const std::string evil = "<script>alert(1)</script>&\"'";
  const std::string html =
      timeline_html({{.name = evil, .parameters = {{"p", evil}}}},
                    {ran({.host = evil, .gpu_indices = {0}, .began = 0, .ended = 1})},
                    {},
                    evil);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;"));
}

TEST(Timeline, NothingHasRun) {
  EXPECT_THAT(timeline_html({}, {}, {}, "t"), HasSubstr("Nothing has run."));
  EXPECT_THAT(timeline_html({{.name = "a"}}, {TaskResult{}}, machine({1}), "t"),
              HasSubstr("GPU 0"));
  EXPECT_THROW(timeline_html({{.name = "a"}}, {}, {}, "t"), Error);
}

}  // namespace
}  // namespace muster
