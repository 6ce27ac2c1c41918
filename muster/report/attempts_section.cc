// How often the job was started, when each attempt began and ended, and of what: a track for each
// launch.
#include <algorithm>

#include "muster/base/strings.h"
#include "muster/draw/xml_text.h"
#include "muster/launch/exit_report.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"

namespace muster {
namespace {

constexpr size_t kMostTracks = 40;  // of one launch; the last ones
constexpr size_t kMostLaunchesShown = 10;
constexpr int kScaleTicks = 4;

struct Stretch {
  double began = 0;
  double ended = 0;
};

Stretch stretch_of(const LaunchRecord& launch) {
  Stretch all{launch.began, launch.ended.value_or(launch.began)};
  for (const AttemptRecord& attempt : launch.attempts)
    all.ended = std::max({all.ended, attempt.began, attempt.ended.value_or(0)});
  all.ended = std::max(all.ended, all.began + 1e-3);
  return all;
}

std::string attempt_name(int attempt) {
  return attempt == 0 ? std::string("first start") : cat("restart ", attempt);
}

struct AttemptEndText {
  std::string kind;  // the bar's class
  std::string text;
};

AttemptEndText end_of(const AttemptRecord& attempt, bool goes_on) {
  if (!attempt.ended)
    return goes_on ? AttemptEndText{"running", "running"}
                   : AttemptEndText{"killed", "no end recorded"};
  if (!attempt.fault.empty())
    return {"failed", attempt.fault};
  if (const WorkerExit* const first = first_failure(attempt.exits))
    return have_stopped(attempt.exits)
               ? AttemptEndText{"stopped", "stopped as asked"}
               : AttemptEndText{"failed", cat("rank ", first->rank, ": ", cause_and_error(*first))};
  const bool ended_by_us =
      std::any_of(attempt.exits.begin(), attempt.exits.end(), [](const WorkerExit& exit) {
        return exit.failed() && exit.sent_signal != 0;
      });
  return ended_by_us ? AttemptEndText{"stopped", "ended by muster"}
                     : AttemptEndText{"done", "done"};
}

std::string scale(const Stretch& all) {
  std::string html = "<span></span><div class=\"scale\">";
  const double length = all.ended - all.began;
  for (const double tick : ticks_of(0, length, kScaleTicks)) {
    if (tick > length * 0.86)
      continue;  // its text would leave the page
    html += cat("<span style=\"left:",
                percent(tick / length),
                "\">",
                tick == 0 ? "0" : span_text(tick),
                "</span>");
  }
  return html + "</div>\n";
}

std::string stack_of(const AttemptRecord& attempt) {
  const WorkerExit* const first = first_failure(attempt.exits);
  if (first == nullptr || first->stack.empty())
    return {};
  return cat("<details><summary>its stack</summary>\n<pre>",
             html_lines(first->stack),
             "</pre>\n</details>");
}

std::string tracks(const LaunchRecord& launch, bool goes_on) {
  const Stretch all = stretch_of(launch);
  const double length = all.ended - all.began;
  const size_t first =
      launch.attempts.size() > kMostTracks ? launch.attempts.size() - kMostTracks : 0;
  std::string html = "<div class=\"rows\">\n";
  for (size_t i = first; i < launch.attempts.size(); ++i) {
    const AttemptRecord& attempt = launch.attempts[i];
    const AttemptEndText end = end_of(attempt, goes_on);
    const double ended = attempt.ended.value_or(all.ended);
    const std::string title = cat(attempt_name(attempt.attempt),
                                  ": ",
                                  wall_time_text(attempt.began),
                                  ", ",
                                  span_text(ended - attempt.began),
                                  ", ",
                                  end.text);
    html += cat("<span class=\"name\">",
                attempt_name(attempt.attempt),
                "</span><div class=\"track\" title=\"",
                xml_text(title),
                "\"><span class=\"",
                end.kind,
                "\" style=\"left:",
                percent((attempt.began - all.began) / length),
                ";width:",
                percent(std::max(0.0, ended - attempt.began) / length),
                "\"></span></div>\n<div class=\"says small\">",
                xml_text(cat(span_text(ended - attempt.began), ", ", end.text)),
                stack_of(attempt),
                "</div>\n");
  }
  html += cat(scale(all), "</div>\n");
  if (first > 0)
    html = cat("<p class=\"soft small\">", first, " earlier attempts are not shown.</p>\n", html);
  return html;
}

std::string launch_line(const LaunchRecord& launch, bool goes_on) {
  std::string text = cat("started ", wall_time_text(launch.began));
  if (launch.ended) {
    text += cat(", ",
                launch.outcome,
                " after ",
                span_text(*launch.ended - launch.began),
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
  const size_t first =
      launches.size() > kMostLaunchesShown ? launches.size() - kMostLaunchesShown : 0;
  std::string html;
  for (size_t i = first; i < launches.size(); ++i) {
    const bool goes_on = run.goes_on && i + 1 == launches.size();
    html += launch_line(launches[i], goes_on) + tracks(launches[i], goes_on);
  }
  const std::string note =
      launches.size() > 1 ? cat("The job was started ", launches.size(), " times in this folder.")
                          : "";
  return html_section("attempts", "Attempts", html, note);
}

}  // namespace muster
