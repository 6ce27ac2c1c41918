// Values that are not known are null, not left out, so that programs find the same members in every
// report.
#include "muster/base/json_member.h"
#include "muster/base/mapped.h"
#include "muster/report/pages.h"

#include <cstdint>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "muster/launch/rank_exit_json.h"
#include "muster/placement/plan_json.h"
#include "muster/report/rank_work.h"

namespace muster {
namespace {

using ReportJson = nlohmann::ordered_json;

// A series without a single number has no first, last, least or most.
ReportJson series_json(const Series& series) {
  const auto points = mapped(series.points, [](const SeriesPoint& point) {
    return ReportJson{point.step, point.mean, point.low, point.high, point.count};
  });
  ReportJson json = {{"name", series.name},
                     {"num_values", series.num_values},
                     {"num_missing", series.num_missing}};
  if (series.num_values > 0) {
    json["first"] = series.first;
    json["last"] = series.last;
    json["last_step"] = series.last_step;
    json["least"] = series.least;
    json["least_step"] = series.least_step;
    json["most"] = series.most;
    json["most_step"] = series.most_step;
  }
  json["points"] = std::move(points);
  return json;
}

// The points are those of the reader; only the charts thin them out further.
ReportJson metrics_json(const MetricsFile& metrics) {
  const auto series = mapped(metrics.series, series_json);
  return {
      {"found", metrics.found},
      {"has_steps", metrics.has_steps},
      {"num_lines", metrics.num_lines},
      {"num_broken", metrics.num_broken},
      {"first_broken", metrics.num_broken > 0 ? ReportJson(metrics.first_broken) : ReportJson()},
      {"cut", metrics.cut},
      {"series_left_out", metrics.series_left_out},
      {"series", std::move(series)}};
}

// Exits are written as failure.json has them.
ReportJson failure_json_of(const JobFailure& failure) {
  const auto exits = mapped(failure.exits, [](const RankExit& exit) { return to_json(exit); });
  return {{"time", failure.time},
          {"attempt", failure.attempt},
          {"exit_code", or_null(failure.exit_code)},
          {"fault", failure.fault},
          {"exits", std::move(exits)},
          {"card", failure.card}};
}

ReportJson call_json(const CallView& call) {
  return {{"number", call.number},
          {"group", call.group},
          {"text", call.text()},
          {"bytes", call.bytes},
          {"begin_ns", call.begin_ns},
          {"end_ns", or_null(call.end_ns)},
          {"failed", call.state == CallState::failed}};
}

// A rank that still runs has worked until now, and one that was killed until its last sign.
ReportJson ranks_json(const JobRun& run) {
  ReportJson ranks = ReportJson::array();
  for (const ActivityView& view : run.ranks) {
    const bool is_running = run.goes_on && !view.closed_ns;
    const int64_t until = is_running ? run.now_ns : view.last_sign_ns();
    const TimeShares shares = time_shares(view, until);
    ReportJson seconds = ReportJson::object();
    for (size_t i = 0; i < kActivityCategories; ++i)
      seconds[to_string(static_cast<Category>(i))] = shares.seconds.at(i);
    const auto calls = mapped(view.calls, call_json);
    ranks.push_back({{"rank", view.rank},
                     {"host", view.host},
                     {"device", view.device},
                     {"attempt", view.attempt},
                     {"closed", view.closed_ns.has_value()},
                     {"step", view.step},
                     {"samples", view.samples},
                     {"seconds", std::move(seconds)},
                     {"seconds_per_step", or_null(seconds_per_step(view))},
                     {"samples_per_second", or_null(samples_per_second(view))},
                     {"doing", doing_text(view)},
                     {"unix_minus_monotonic_ns", view.unix_minus_monotonic_ns},
                     {"num_calls", view.num_calls},
                     {"calls", std::move(calls)}});
  }
  return ranks;
}

}  // namespace

// The members of failure.json, plan.json and run.json are those of the files.
std::string job_report_json(const JobRun& run) {
  // The record is written by its own function, which the launcher uses for run.json too.
  const ReportJson record = ReportJson::parse(run_record_to_json(run.record));
  const ReportJson document = {
      {"schema", "muster.report/1"},
      {"kind", "job"},
      {"folder", run.folder},
      {"title", title_of(run)},
      {"outcome", outcome_of(run)},
      {"problems", run.problems},
      {"launches", record.at("launches")},
      {"machine", record.at("machine")},
      {"plan", run.plan ? ReportJson::parse(plan_to_json(*run.plan)) : ReportJson()},
      {"failure", run.failure ? failure_json_of(*run.failure) : ReportJson()},
      {"metrics", metrics_json(run.metrics)},
      {"divergences", run.divergences},
      {"ranks", ranks_json(run)}};
  return json_text(document, 1) + "\n";
}

}  // namespace muster
