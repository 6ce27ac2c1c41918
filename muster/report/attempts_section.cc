// The section of attempts: for each launch of the job its attempts below each other, each as a bar
// on the launch's time, with what it ended of. A launch is one `muster run`; it makes a new attempt
// whenever it starts its ranks again.
#include <algorithm>
#include <span>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "muster/draw/xml_text.h"
#include "muster/launch/exit_report.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"
#include "muster/report/number_text.h"

namespace muster {
namespace {

// Only the last ones are shown.
constexpr size_t kMostTracks = 40;  // of one launch
constexpr size_t kMostLaunchesShown = 10;

struct Stretch {
  double began = 0;
  double ended = 0;
};

// Returns the time in which everything of the launch lies. It is never empty: places on it are
// shares of its length.
Stretch stretch_of(const LaunchRecord& launch) {
  Stretch all{launch.began, launch.ended.value_or(launch.began)};
  for (const AttemptRecord& attempt : launch.attempts)
    all.ended = std::max({all.ended, attempt.began, attempt.ended.value_or(0)});
  all.ended = std::max(all.ended, all.began + 1e-3);
  return all;
}

// The launcher numbers attempts from 0; people count restarts.
std::string attempt_name(int attempt) {
  return attempt == 0 ? std::string("first start") : cat("restart ", attempt);
}

struct AttemptEndText {
  std::string kind;  // the bar's class
  std::string text;
};

bool was_ended_by_muster(const RankExit& exit) {
  return exit.failed() && exit.sent_signal != 0;
}

// `goes_on`: the launch does, so an attempt without an end is still running.
AttemptEndText end_of(const AttemptRecord& attempt, bool goes_on) {
  if (!attempt.ended && goes_on)
    return {"running", "running"};
  if (!attempt.ended)
    return {"killed", "no end recorded"};
  if (!attempt.fault.empty())
    return {"failed", attempt.fault};
  const RankExit* const first = first_failure(attempt.exits);
  if (first != nullptr && have_stopped(attempt.exits))
    return {"stopped", "stopped as asked"};
  if (first != nullptr)
    return {"failed", cat("rank ", first->rank, ": ", cause_and_error(*first))};
  if (any_of(attempt.exits, was_ended_by_muster))
    return {"stopped", "ended by muster"};
  return {"done", "done"};
}

// The stack is folded: most readers look for the cause alone.
std::string stack_of(const AttemptRecord& attempt) {
  const RankExit* const first = first_failure(attempt.exits);
  if (first == nullptr || first->stack.empty())
    return {};
  return cat("<details><summary>its stack</summary>\n<pre>",
             html_lines(first->stack),
             "</pre>\n</details>");
}

// An attempt's name, its bar on the launch's time, and what it ended of.
std::string attempt_row(const AttemptRecord& attempt, const Stretch& all, bool goes_on) {
  const AttemptEndText end = end_of(attempt, goes_on);
  const auto name = attempt_name(attempt.attempt);
  const double length = all.ended - all.began;
  const double seconds = attempt.ended.value_or(all.ended) - attempt.began;
  const auto says = cat(duration_text(seconds), ", ", end.text);
  return cat("<span class=\"name\">",
             name,
             "</span><div class=\"track\" title=\"",
             xml_text(cat(name, ": ", wall_time_text(attempt.began), ", ", says)),
             "\"><span class=\"",
             end.kind,
             "\" style=\"left:",
             percent((attempt.began - all.began) / length),
             ";width:",
             percent(std::max(0.0, seconds) / length),
             "\"></span></div>\n<div class=\"says small\">",
             xml_text(says),
             stack_of(attempt),
             "</div>\n");
}

std::string attempt_rows(const LaunchRecord& launch, bool goes_on) {
  const Stretch all = stretch_of(launch);
  const size_t count = launch.attempts.size();
  const size_t shown = std::min(count, kMostTracks);
  std::string html = "<div class=\"rows\">\n";
  for (const AttemptRecord& attempt : std::span(launch.attempts).last(shown))
    html += attempt_row(attempt, all, goes_on);
  html += cat(html_scale(all.ended - all.began), "</div>\n");
  if (shown < count) {
    html = cat(
        "<p class=\"soft small\">", count - shown, " earlier attempts are not shown.</p>\n", html);
  }
  return html;
}

// A launch that has not ended either goes on or was killed with its launcher.
std::string launch_line(const LaunchRecord& launch, bool goes_on) {
  auto text = cat("started ", wall_time_text(launch.began));
  if (launch.ended) {
    text += cat(", ",
                launch.outcome,
                " after ",
                duration_text(*launch.ended - launch.began),
                ", exit code ",
                launch.exit_code);
  } else {
    text += goes_on ? ", goes on" : ", its launcher has recorded no end";
  }
  return cat("<h3 style=\"margin-top:14px\">", xml_text(text), "</h3>\n");
}

}  // namespace

std::string attempts_section(const JobRun& run) {
  const auto& launches = run.record.launches;
  if (launches.empty())
    return {};
  std::string html;
  for (const LaunchRecord& launch :
       std::span(launches).last(std::min(launches.size(), kMostLaunchesShown))) {
    const bool goes_on = run.goes_on && &launch == run.last_launch();
    html += launch_line(launch, goes_on) + attempt_rows(launch, goes_on);
  }
  const std::string note =
      launches.size() > 1 ? cat("The job was started ", launches.size(), " times in this folder.")
                          : "";
  return html_section("attempts", "Attempts", html, note);
}

}  // namespace muster
