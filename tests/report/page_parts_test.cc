#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/report/html.h"
#include "muster/report/line_chart.h"
#include "muster/report/number_text.h"
#include "muster/report/tasks_report.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(ReportNumbers, AsPeopleReadThem) {
  EXPECT_EQ(number_text(0.0812345), "0.08123");
  EXPECT_EQ(number_text(12), "12");
  EXPECT_EQ(number_text(1234567), "1\u202f234\u202f567");
  EXPECT_EQ(number_text(-41234.6), "-41\u202f235");
  EXPECT_EQ(number_text(1.5e-9), "1.5e-09");
  EXPECT_EQ(value_text("samples_per_second", 1204.4), "1204\u00a0samples/s");
  EXPECT_EQ(value_text("peak_bytes", 3 << 20), "3.0 MiB");
  EXPECT_EQ(unit_of("loss"), "");
  EXPECT_EQ(percent(0.12345), "12.35%");
  EXPECT_EQ(duration_text(42e-6), "42µs");
  EXPECT_EQ(duration_text(0.00312), "3.12ms");
  EXPECT_EQ(duration_text(83), "1m23s");
}

TEST(ReportNumbers, TicksAreAtRoundNumbers) {
  EXPECT_THAT(ticks_of(0, 5000, 6), ElementsAre(0, 1000, 2000, 3000, 4000, 5000));
  EXPECT_EQ(tick_text(ticks_of(0.2, 1, 5).at(1)), "0.4");
  EXPECT_EQ(tick_text(25'000), "25k");
  EXPECT_THAT(ticks_of(3, 3, 5), ElementsAre(3)) << "a range of nothing";
  EXPECT_LE(ticks_of(0.9, 0.9000000000000001, 5).size(), 6U) << "doubles beside each other";
  EXPECT_LE(ticks_of(0.9999999999999999, 1, 5).size(), 6U);
  for (const double most : {1e-300, 1e-9, 7.0, 1e300})
    EXPECT_LE(ticks_of(0, most, 5).size(), 6U) << most;
}

TEST(ReportTable, EscapesAndSaysWhatIsLeftOut) {
  const std::string html =
      html_table({{"<a>"}, {"empty"}}, {{"x & y", ""}, {"2", ""}, {"3", ""}}, 2);
  EXPECT_THAT(html, HasSubstr("&lt;a&gt;"));
  EXPECT_THAT(html, HasSubstr("x &amp; y"));
  EXPECT_THAT(html, HasSubstr("1 more row is in the JSON"));
  EXPECT_THAT(html, Not(HasSubstr(">3<")));
  EXPECT_THAT(html, Not(HasSubstr("empty"))) << "a column that says nothing";
}

Series series_of(const std::string& name, std::initializer_list<double> values) {
  Series series{.name = name};
  for (const double value : values) {
    const auto step = static_cast<double>(series.points.size() + 1);
    series.points.push_back({step, value, value, value, 1, 0});
    series.last = value;
    series.last_step = step;
  }
  series.num_values = static_cast<int64_t>(values.size());
  return series;
}

TEST(ReportCharts, RelatedSeriesShareAChartAndLossesComeFirst) {
  const std::vector<Series> all = {series_of("epoch", {1}),
                                   series_of("test_accuracy", {1}),
                                   series_of("val_loss", {1}),
                                   series_of("loss", {1}),
                                   series_of("nothing", {})};
  const auto charts = charts_of(all);
  ASSERT_EQ(charts.size(), 3U);
  ASSERT_EQ(charts[0].size(), 2U);
  EXPECT_EQ(charts[0][0]->name, "loss") << "the plain name is the chart's";
  EXPECT_EQ(charts[0][1]->name, "val_loss");
  EXPECT_EQ(charts[1][0]->name, "test_accuracy");
  EXPECT_EQ(charts[2][0]->name, "epoch");
}

TEST(ReportCharts, WhereTimeWentIsOneChart) {
  const std::vector<Series> all = {
      series_of("time/compute", {1}), series_of("time/data", {1}), series_of("time/epoch", {1})};
  const auto charts = charts_of(all);
  ASSERT_EQ(charts.size(), 2U);
  EXPECT_EQ(charts[0].size(), 2U);
  EXPECT_EQ(charts[1][0]->name, "time/epoch") << "a number of the program's own";
}

TEST(ReportCharts, AreDrawnOfAnyNumbers) {
  for (const auto& values : {std::initializer_list<double>{5},
                             {0, 0, 0},
                             {1e-9, 1e9},
                             {-3, 3},
                             {1e308, -1e308},
                             {5e-324, 1}}) {
    const Series series = series_of("<b>", values);
    const std::string svg = line_chart({&series}, "step");
    EXPECT_THAT(svg, HasSubstr("class=\"curve k1\""));
    EXPECT_THAT(svg, HasSubstr("&lt;b&gt;"));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    EXPECT_LT(svg.size(), 60'000U);
  }
}

TEST(BestTasks, ByTheNameOfTheField) {
  const std::vector<Task> tasks = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
  const auto done = [](const char* json) {
    return TaskResult{.state = TaskState::done, .last_json = json};
  };
  std::vector<TaskResult> results = {done(R"({"loss":1,"acc":0.5,"n":1,"same":4,"text":"x"})"),
                                     done(R"({"loss":3,"acc":0.9,"n":5,"same":4,"text":"y"})"),
                                     done(R"({"loss":0.1,"acc":0.99,"n":9,"same":4})")};
  results[2].state = TaskState::failed;
  const auto best = best_tasks(tasks, results);
  ASSERT_EQ(best.size(), 4U);
  EXPECT_EQ(best[0].field, "loss");
  EXPECT_EQ(best[0].task, 0U);
  EXPECT_EQ(best[1].field, "acc");
  EXPECT_EQ(best[1].task, 1U);
  EXPECT_TRUE(best[1].highest);
  EXPECT_EQ(best[2].field, "n");
  EXPECT_FALSE(best[2].by_name) << "whose better end nobody knows: both are told";
  EXPECT_EQ(best[3].value, 5);
}

}  // namespace
}  // namespace muster
