#include "muster/report/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

MetricsFile read_text(const std::string& text, const MetricsLimits& limits = {}) {
  const ScratchFolder folder;
  folder.write("metrics.jsonl", text);
  return read_metrics(folder.path() + "/metrics.jsonl", limits);
}

TEST(MetricsFile, EveryNumberIsASeries) {
  const MetricsFile file = read_text(
      "{\"step\":1,\"loss\":2.5,\"name\":\"a\",\"memory\":{\"peak\":7}}\n{\"step\":3,\"loss\":1.5,"
      "\"memory\":"
      "{\"peak\":9}}\n");
  ASSERT_EQ(file.series.size(), 2U);
  EXPECT_TRUE(file.has_steps);
  EXPECT_EQ(file.series[0].name, "loss");
  EXPECT_EQ(file.series[0].points.at(1).step, 3);
  EXPECT_EQ(file.series[0].last, 1.5);
  EXPECT_EQ(file.series[0].least_step, 3);
  EXPECT_EQ(file.series[1].name, "memory.peak");
  EXPECT_EQ(file.series[1].most, 9);
}

TEST(MetricsFile, BrokenLinesAreCountedAndNoError) {
  const std::string deep = std::string(100'000, '[');
  const MetricsFile file = read_text(
      cat("{\"step\":1,\"loss\":1}\nnonsense\n[1]\n", deep, "\n\n{\"step\":2,\"loss\":2}\n{\"st"));
  EXPECT_EQ(file.num_lines, 7);
  EXPECT_EQ(file.num_broken, 4);
  EXPECT_EQ(file.first_broken, 2);
  EXPECT_EQ(file.series.at(0).num_values, 2);
}

TEST(MetricsFile, NullsAreCountedAndInfinitiesToo) {
  const MetricsFile file =
      read_text("{\"loss\":null}\n{\"loss\":1}\n{\"loss\":\"NaN\"}\n{\"loss\":1e999}\n");
  EXPECT_FALSE(file.has_steps);
  EXPECT_EQ(file.series.at(0).num_values, 1);
  EXPECT_EQ(file.series.at(0).points.at(0).step, 2) << "without steps it is the line's number";
  EXPECT_GE(file.series.at(0).num_missing, 2);
}

TEST(MetricsFile, ALongSeriesIsThinnedEvenlyAndKeepsItsExtremes) {
  std::string text;
  for (int i = 1; i <= 10'000; ++i)
    text += cat("{\"step\":", i, ",\"x\":", i == 4321 ? 1000 : i % 7, "}\n");
  const MetricsFile file = read_text(text, {.points = 100});
  const Series& series = file.series.at(0);
  EXPECT_LE(series.points.size(), 100U);
  EXPECT_GE(series.points.size(), 50U);
  EXPECT_EQ(series.num_values, 10'000);
  EXPECT_EQ(series.most, 1000);
  EXPECT_EQ(series.most_step, 4321);
  int64_t values = 0;
  double highest = 0;
  for (const SeriesPoint& point : series.points) {
    values += point.count;
    highest = std::max(highest, point.high);
    EXPECT_LE(point.count, series.points.front().count);
  }
  EXPECT_EQ(values, 10'000) << "every value is in a point";
  EXPECT_EQ(highest, 1000);
}

TEST(MetricsFile, StepsThatBeginAgainAreAnotherPart) {
  const MetricsFile file =
      read_text("{\"step\":1,\"x\":1}\n{\"step\":2,\"x\":1}\n{\"step\":1,\"x\":1}\n");
  EXPECT_EQ(file.series.at(0).points.at(1).part, 0);
  EXPECT_EQ(file.series.at(0).points.at(2).part, 1);
}

TEST(MetricsFile, AlternatingStepsStayWithinTheLimit) {
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += cat("{\"step\":", 1000 - i, ",\"x\":1}\n");
  EXPECT_LE(read_text(text, {.points = 50}).series.at(0).points.size(), 50U);
}

TEST(MetricsFile, WhatIsTooMuchIsLeftOutAndSaid) {
  std::string text = "{";
  for (int i = 0; i < 10; ++i)
    text += cat(i == 0 ? "" : ",", "\"n", i, "\":", i);
  const MetricsFile file = read_text(text + "}\n", {.series = 4});
  EXPECT_EQ(file.series.size(), 4U);
  EXPECT_EQ(file.series_left_out, 6U);
  EXPECT_TRUE(read_text(std::string(300'000, '\n'), {.bytes = 1000}).cut);
  EXPECT_EQ(read_text(cat("{\"x\":\"", std::string(5000, 'y'), "\"}\n{\"x\":1}\n"), {.line = 1000})
                .num_broken,
            1);
}

TEST(MetricsFile, NoFileIsNoError) {
  EXPECT_FALSE(read_metrics("/no/such/metrics.jsonl").found);
}

TEST(MetricsFile, ThinnedHasAtMostSoMany) {
  std::vector<SeriesPoint> points;
  for (int i = 0; i < 1000; ++i)
    points.push_back({static_cast<double>(i), 1, 1, 1, 1, 0});
  const auto fewer = thinned(points, 300);
  EXPECT_EQ(fewer.size(), 250U);
  EXPECT_EQ(fewer.back().step, 999);
}

}  // namespace
}  // namespace muster
