// The page is text that is put together: rows are drawn one below the other, into three layers (the
// labels, the bands behind, the bars) that become two pictures side by side. The labels stay in
// sight while the plot is scrolled. A tooltip is the bar's title element.
#include "muster/tasks/report/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/draw/svg.h"
#include "muster/draw/xml_text.h"
#include "muster/tasks/report/columns.h"
#include "muster/tasks/report/timeline_rows.h"

namespace muster {
namespace {

// Sizes in pixels. The busiest row decides how wide the plot is, within bounds.
constexpr int kLeastWidth = 1000;
constexpr int kMostWidth = 16'000;
constexpr int kPixelsABar = 5;  // of the busiest row, on average
constexpr int kLabelWidth = 250;
constexpr int kAxisHeight = 26;
constexpr int kGpuRow = 34;
constexpr int kCpuRow = 20;
constexpr int kHostHeight = 24;
constexpr int kPixelsATick = 130;
constexpr int kFontSize = 11;

// Nothing is loaded from anywhere, and nothing in it can run.
constexpr auto kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
)";

constexpr auto kPageStyle = R"(<style>
:root { color-scheme: light dark; --back: #ffffff; --front: #1f2428; --soft: #5f6b76; --line: #dfe3e8; }
@media (prefers-color-scheme: dark) { :root { --back: #14181c; --front: #e6eaee; --soft: #9aa6b2; --line: #2d343b; } }
body { margin: 24px; background: var(--back); color: var(--front); font: 14px system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; overflow-wrap: anywhere; }
p { margin: 0 0 12px; color: var(--soft); }
</style>
)";

constexpr auto kFigureStyle = R"(<style>
.timeline { --band: #f5f7f9; --done: #2f6fb0; --failed: #b83227; --late: #9a5800; --lost: #66717c; --running: #1f7a5c; --stopped: #6b5b95; }
@media (prefers-color-scheme: dark) {
  .timeline { --band: #1a1f24; --done: #3f7fc0; --failed: #c8463a; --late: #a8660a; --lost: #74808c; --running: #2a8a69; --stopped: #8573b3; }
}
.timeline .legend { display: flex; flex-wrap: wrap; gap: 6px 18px; list-style: none; margin: 0 0 12px; padding: 0; }
.timeline .chart { display: flex; width: fit-content; max-width: 100%; border: 1px solid var(--line); border-radius: 6px; overflow: hidden; }
.timeline .plot { overflow-x: auto; flex: 1; }
.timeline svg { display: block; flex: none; } .timeline .legend svg { display: inline-block; vertical-align: -2px; margin-right: 6px; }
.timeline text { font: 11px system-ui, sans-serif; fill: var(--front); }
.timeline .host { font-weight: 600; font-size: 12px; } .timeline .soft { fill: var(--soft); } .timeline .end { text-anchor: end; }
.timeline .band { fill: var(--band); opacity: 1; } .timeline .grid { stroke: var(--line); } .timeline .edge { stroke: var(--line); }
.timeline .bar { stroke: var(--back); stroke-width: 0.5; }
.timeline .done { fill: var(--done); } .timeline .failed { fill: var(--failed); } .timeline .late { fill: var(--late); }
.timeline .lost { fill: var(--lost); } .timeline .running { fill: var(--running); } .timeline .stopped { fill: var(--stopped); }
.timeline .mark { fill: url(#hatch); pointer-events: none; }
.timeline .bar:hover { filter: brightness(1.25); } .timeline .name { fill: #ffffff; pointer-events: none; }
@media (max-width: 560px) { .timeline .chart > svg { width: 150px; } }
</style>
)";

constexpr auto kHatch =
    R"_(<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">)_"
    R"_(<path d="M0 0V6" stroke="#ffffff" stroke-opacity="0.3" stroke-width="3"/></pattern></defs>)_";

// How an attempt ended, as its bar shows it.
enum class BarKind { done, failed, late, lost, running, stopped };

struct BarLook {
  const char* name;  // its class
  const char* words;
  bool hatched;  // what went wrong is seen without colours too
};

// The looks are in the order of BarKind.
constexpr std::array<BarLook, 6> kLooks = {{{"done", "done", false},
                                            {"failed", "failed", true},
                                            {"late", "over its time limit", true},
                                            {"lost", "lost with its run or host", true},
                                            {"running", "running", false},
                                            {"stopped", "stopped, to be started again", false}}};

// An attempt without an end runs still; a lost one has an end that nobody saw.
BarKind kind_of(const TaskAttempt& attempt) {
  if (!attempt.ended)
    return BarKind::running;
  if (attempt.lost)
    return BarKind::lost;
  if (attempt.timed_out)
    return BarKind::late;
  if (has_stopped(attempt))
    return BarKind::stopped;
  const bool ended_well = attempt.exit_code == 0 && attempt.signal == 0;
  return ended_well ? BarKind::done : BarKind::failed;
}

// Whether the program ended well and has failed all the same, by what it printed. That is known of
// the last attempt.
bool failed_by_result(const TaskResult& result, size_t attempt) {
  const bool is_last = attempt + 1 == result.attempts.size();
  return is_last && result.state == TaskState::failed &&
         kind_of(result.attempts[attempt]) == BarKind::done;
}

// A rectangle of the picture.
struct Area {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

std::string rectangle(const std::string& kind,
                      const Area& area,
                      const char* corners = "",
                      const std::string& content = {}) {
  return svg_element("rect",
                     {{"class", kind},
                      {"x", area.x},
                      {"y", area.y},
                      {"width", area.width},
                      {"height", area.height},
                      {"rx", corners}},
                     content) +
         "\n";
}

// An SVG element with that content.
std::string picture(double width, double height, const std::string& content) {
  return svg_element("svg", {{"width", width}, {"height", height}}, "\n" + content) + "\n";
}

// Steps of a second and more that people count in.
constexpr double kSteps[] = {1,
                             2,
                             5,
                             10,
                             20,
                             30,
                             60,
                             120,
                             300,
                             600,
                             1'200,
                             1'800,
                             3'600,
                             7'200,
                             10'800,
                             21'600,
                             43'200,
                             86'400};
constexpr double kDay = 86'400;

// A step between ticks that people count in, no shorter than `least` seconds: 1, 2 or 5 of a
// decimal place, then as clocks do, then whole days.
double tick_step(double least) {
  double step = 1;
  while (step > least && step > 1e-6)
    step /= 10;
  for (const double factor : {2.0, 2.5, 2.0}) {  // 1, 2, 5, 10
    if (step >= least || step >= 1)
      break;
    step *= factor;
  }
  if (step >= least)
    return step;
  const auto* const found = std::ranges::lower_bound(kSteps, least);
  return found != std::end(kSteps) ? *found : kDay * std::ceil(least / kDay);
}

// Draws the rows of a timeline into one page, or into the figure alone.
class TimelinePage {
 public:
  TimelinePage(const Tasks& tasks, const TaskResults& results, const Inventory& inventory)
      : tasks_(tasks), results_(results), timeline_(timeline_of(results, inventory)) {
    const auto most = max_of<int64_t>(timeline_.rows,
                                      [](const TimelineRow& row) { return std::ssize(row.bars); });
    width_ = static_cast<int>(std::clamp<int64_t>(most * kPixelsABar, kLeastWidth, kMostWidth));
    scale_ = timeline_.end > 0 ? (width_ - 1) / timeline_.end : 0;
  }

  // The page with the figure and a line that sums it up.
  std::string html(const std::string& title) {
    return cat(kHead,
               "<title>",
               xml_text(title),
               "</title>\n",
               kPageStyle,
               kFigureStyle,
               "</head>\n<body>\n<h1>",
               xml_text(title),
               "</h1>\n<p>",
               summary(),
               "</p>\n",
               figure(),
               "</body>\n</html>\n");
  }

  // The legend, and below it the two pictures side by side.
  std::string figure() {
    if (timeline_.rows.empty())
      return "<p>Nothing has run.</p>\n";
    for (const TimelineRow& row : timeline_.rows)
      draw_row(row);
    const int height = y_ + kAxisHeight;
    return cat("<div class=\"timeline\">\n",
               legend(),
               "<div class=\"chart\">\n",
               picture(kLabelWidth, height, labels_),
               "<div class=\"plot\">\n",
               picture(width_, height, cat(kHatch, "\n", bands_, axis(), bars_)),
               "</div>\n</div>\n</div>\n");
  }

 private:
  // "3 tasks, 2 done, 1 failed; 1m20s in all".
  std::string summary() const {
    std::map<TaskState, size_t> counts;
    for (const TaskResult& result : results_)
      ++counts[result.state];
    auto text = plural(tasks_.size(), "task");
    for (const auto& [state, count] : counts)
      text += cat(", ", count, " ", to_string(state));
    return cat(text, "; ", format_seconds(timeline_.end), " in all");
  }

  // A bar of each kind, and what it means.
  static std::string legend() {
    std::string text = "<ul class=\"legend\">\n";
    const Area sample{.width = 22, .height = 12};
    for (const BarLook& look : kLooks) {
      const std::string mark = look.hatched ? rectangle("mark", sample, "2") : "";
      text += cat("<li>",
                  picture(sample.width,
                          sample.height,
                          cat(look.hatched ? kHatch : "", rectangle(look.name, sample, "2"), mark)),
                  look.words,
                  "</li>\n");
    }
    return text + "</ul>\n";
  }

  void draw_row(const TimelineRow& row) {
    if (row.host != host_ || y_ == 0)
      draw_host(row.host);
    const int height = row.is_gpu ? kGpuRow : kCpuRow;
    if (++num_rows_ % 2 == 1)
      draw_band(height);
    draw_label(row, height);
    for (const TimelineBar& bar : row.bars)
      draw_bar(bar, height);
    y_ += height;
  }

  // The rows of a host stand below its name.
  void draw_host(const std::string& host) {
    host_ = host;
    const auto name = text_or(host, "this host");
    labels_ += svg_label(10, y_ + 16, fit_text(name, chars_in(kLabelWidth - 20, 12)), "host");
    y_ += kHostHeight;
  }

  // Every other row has a band behind it, in both pictures.
  void draw_band(double height) {
    Area area{.y = 1.0 * y_, .width = kLabelWidth, .height = height};
    labels_ += rectangle("band", area);
    area.width = width_;
    bands_ += rectangle("band", area);
  }

  // The device, how busy it was, and below its name its model, if that is known.
  void draw_label(const TimelineRow& row, int height) {
    const int baseline = y_ + (row.detail.empty() ? height / 2 + 4 : 14);
    labels_ += svg_label(10, baseline, row.label);
    labels_ += svg_label(
        kLabelWidth - 10, baseline, cat(std::lround(row.busy * 100), " % busy"), "soft end");
    if (row.detail.empty())
      return;
    labels_ +=
        svg_label(10, y_ + 28, fit_text(row.detail, chars_in(kLabelWidth - 20, kFontSize)), "soft");
  }

  // A bar is at least a pixel wide and high, so that no attempt is invisible. Its name is written
  // into it where there is room.
  void draw_bar(const TimelineBar& bar, int row_height) {
    const Task& task = tasks_[bar.task];
    const TaskResult& result = results_[bar.task];
    const bool by_result = failed_by_result(result, bar.attempt);
    const BarKind kind = by_result ? BarKind::failed : kind_of(result.attempts[bar.attempt]);
    const BarLook& look = kLooks.at(static_cast<size_t>(kind));
    const double inside = row_height - 4;
    const Area area{.x = bar.began * scale_,
                    .y = y_ + 2 + bar.top * inside,
                    .width = std::max(1.0, (bar.ended - bar.began) * scale_),
                    .height = std::max(1.0, bar.height * inside)};
    const char* const corners = area.width > 6 ? "2" : "";
    bars_ +=
        rectangle(cat("bar ", look.name), area, corners, svg_element("title", {}, tooltip(bar)));
    if (look.hatched && area.width >= 3)
      bars_ += rectangle("mark", area, corners);
    if (area.width < 24 || area.height < 12)
      return;  // a name would not fit
    const size_t room = chars_in(static_cast<int>(area.width) - 8, kFontSize);
    if (room < 3)
      return;
    bars_ += svg_label(area.x + 4, area.y + area.height / 2 + 4, fit_text(task.name, room), "name");
  }

  // Lines of text. They are escaped one by one: a line's end in a name is none of these.
  std::string tooltip(const TimelineBar& bar) const {
    const Task& task = tasks_[bar.task];
    const TaskAttempt& attempt = results_[bar.task].attempts[bar.attempt];
    Strings lines = {xml_text(task.name)};
    for (const auto& [name, value] : task.parameters)
      lines.push_back(xml_text(cat(name, " = ", fit_text(value, 100))));
    lines.push_back(xml_text(devices_text(attempt, true)));
    if (attempt.attempt > 0)
      lines.push_back(cat("restart ", attempt.attempt));
    lines.push_back(cat("from ",
                        format_seconds(bar.began),
                        attempt.ended ? cat(" to ", format_seconds(bar.ended)) : "",
                        " (",
                        format_seconds(bar.ended - bar.began),
                        ")"));
    const bool by_result = failed_by_result(results_[bar.task], bar.attempt);
    const std::string end = by_result ? results_[bar.task].reason : end_text(attempt);
    lines.push_back(xml_text(text_or(end, "done")));
    return join(lines, "\n");
  }

  // Ticks, which are lines through the whole plot, with their times below.
  std::string axis() const {
    std::string text;
    const int bottom = y_;
    const double end = std::max(timeline_.end, 1e-3);
    const double step = tick_step(end * kPixelsATick / width_);
    for (int i = 0; i * step <= end; ++i) {
      const double x = i * step * (width_ - 1) / end;
      text += svg_line("grid", SvgPath().move(x, 0).vertical(bottom));
      if (x > width_ - 40)
        continue;  // its label would be cut
      const std::string time = i == 0 ? "0" : format_seconds(i * step);
      text += svg_label(x + 3, bottom + 16, time, "soft");
    }
    return text + svg_line("edge", SvgPath().move(0, bottom + 0.5).horizontal(width_));
  }

  const Tasks& tasks_;
  const TaskResults& results_;
  const Timeline timeline_;
  int width_ = kLeastWidth;
  double scale_ = 0;  // pixels a second
  int y_ = 0;
  int num_rows_ = 0;
  std::string host_;
  std::string labels_;
  std::string bands_;
  std::string bars_;
};

}  // namespace

std::string timeline_html(const Tasks& tasks,
                          const TaskResults& results,
                          const Inventory& inventory,
                          const std::string& title) {
  check_results(tasks, results);
  return TimelinePage(tasks, results, inventory).html(title);
}

std::string timeline_figure(const Tasks& tasks,
                            const TaskResults& results,
                            const Inventory& inventory) {
  check_results(tasks, results);
  return TimelinePage(tasks, results, inventory).figure();
}

const char* timeline_style() {
  return kFigureStyle;
}

}  // namespace muster
