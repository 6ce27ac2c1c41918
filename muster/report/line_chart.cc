// The figure works without a script. It is divided into upright stripes that nobody sees; the style
// sheet shows a stripe's tip (the values there, and a dot on each line) while the pointer is over
// the stripe. Values that span several decades, and are all above zero, get a logarithmic axis.
#include "muster/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/draw/svg.h"
#include "muster/draw/xml_text.h"
#include "muster/report/number_text.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/category.h"

namespace muster {
namespace {

constexpr double kWidth = 420;
constexpr double kHeight = 214;
constexpr double kLeft = 46;
constexpr double kRight = 10;
constexpr double kTop = 10;
constexpr double kBottom = 36;
constexpr size_t kMostPoints = 400;  // about a point for each pixel
constexpr int kColumns = 48;         // stripes, each with a tip
constexpr double kLogFrom = 1000;    // ratio of the largest value to the least
constexpr size_t kFewPoints = 12;    // each of which is drawn as a dot too
constexpr int kTipFont = 11;

// It is empty until it takes its first value.
struct Range {
  double least = HUGE_VAL;
  double most = -HUGE_VAL;
  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

class LineChart {
 public:
  // The axes span what is drawn: the thinned points with their spreads.
  LineChart(const ChartSeries& series, std::string x_name)
      : series_(series), x_name_(std::move(x_name)) {
    for (const Series* const one : series_) {
      points_.push_back(thinned(one->points, kMostPoints));
      for (const SeriesPoint& point : points_.back()) {
        x_.take(point.step);
        y_.take(point.low);
        y_.take(point.high);
      }
    }
    is_log_ = y_.least > 0 && y_.most / y_.least >= kLogFrom;
    widen();
  }

  // The stripes come last, so that they lie above the curves and get the pointer.
  std::string figure() const {
    const auto svg = svg_element("svg",
                                 {{"class", "chart"},
                                  {"viewBox", cat("0 0 ", kWidth, " ", kHeight)},
                                  {"role", "img"},
                                  {"aria-label", description()}},
                                 cat("\n", grid(), curves(), columns()));
    return cat("<figure>\n", caption(), svg, "\n", legend(), "</figure>\n");
  }

 private:
  // Makes an empty range one that can be drawn, and keeps curves from touching the frame. A range
  // that rounding alone may have made counts as empty.
  void widen() {
    if (x_.least == x_.most) {
      x_.least -= 1;
      x_.most += 1;
    }
    if (is_log_)
      return;
    double margin = (y_.most - y_.least) * 0.05;
    const bool is_empty = margin == 0 || margin < 1e-12 * std::abs(y_.most);
    if (is_empty)
      margin = y_.most == 0 ? 1 : std::abs(y_.most) * 0.1;
    const bool above_zero = y_.least >= 0;
    y_.least -= margin;
    y_.most += margin;
    if (above_zero)
      y_.least = std::max(0.0, y_.least);
  }

  double x_of(double step) const {
    return kLeft + (step - x_.least) / (x_.most - x_.least) * (kWidth - kLeft - kRight);
  }
  double y_of(double value) const {
    const double share = is_log_ ? std::log(value / y_.least) / std::log(y_.most / y_.least)
                                 : (value - y_.least) / (y_.most - y_.least);
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }

  // The chart in words, for screen readers.
  std::string description() const {
    const auto names = mapped(series_, [](const Series* const one) {
      return cat(one->name, " from ", number_text(one->first), " to ", number_text(one->last));
    });
    return cat(join(names, ", "),
               " over ",
               x_name_,
               " ",
               number_text(x_.least),
               " to ",
               number_text(x_.most));
  }

  // The chart is called by its first series, and shows the last value of it.
  std::string caption() const {
    const Series& first = *series_.front();
    const char* const notes = is_log_ ? " · logarithmic" : "";
    return cat("<figcaption><h3>",
               xml_text(first.name),
               "<span class=\"soft small\">",
               notes,
               "</span></h3><span class=\"now\">",
               xml_text(value_text(first.name, first.last)),
               " at ",
               xml_text(x_name_),
               " ",
               xml_text(number_text(first.last_step)),
               "</span></figcaption>\n");
  }

  // At most six ticks; on a logarithmic axis they are powers of ten.
  Doubles value_ticks() const {
    if (!is_log_)
      return ticks_of(y_.least, y_.most, 5);
    Doubles ticks;
    const long first = std::lround(std::ceil(std::log10(y_.least) - 1e-9));
    const long last = std::lround(std::floor(std::log10(y_.most) + 1e-9));
    const long step = std::max(1L, (last - first + 4) / 5);
    for (long power = first; power <= last; power += step)
      ticks.push_back(std::pow(10, power));
    return ticks;
  }

  // Lines of the values go across, those of the steps upright, each with its number.
  std::string grid() const {
    const double right = kWidth - kRight;
    const double bottom = kHeight - kBottom;
    std::string svg;
    for (const double tick : value_ticks()) {
      const double y = y_of(tick);
      svg += svg_line("grid", SvgPath().move(kLeft, y).horizontal(right));
      svg += svg_label(kLeft - 6, y + 4, tick_text(tick), "end");
    }
    for (const double tick : ticks_of(x_.least, x_.most, 6)) {
      const double x = x_of(tick);
      svg += svg_line("grid", SvgPath().move(x, kTop).vertical(bottom));
      svg += svg_label(std::min(x, kWidth - 14), bottom + 15, tick_text(tick), "mid");
    }
    svg += svg_line("axis", SvgPath().move(kLeft, bottom).horizontal(right));
    return svg + svg_label((kLeft + right) / 2, kHeight - 5, x_name_, "mid");
  }

  // The look of a series follows from its place in the chart; all bands lie below the curves of
  // later series.
  std::string curves() const {
    std::string svg;
    for (const size_t i : indices_of(points_)) {
      svg += band(points_[i], i + 1);
      svg += curve(points_[i], i + 1);
    }
    return svg;
  }

  // The area from the least to the most of the values that each point stands for, part by part.
  std::string band(const SeriesPoints& points, size_t look) const {
    std::string svg;
    for (auto from = points.begin(); from != points.end();) {
      const auto to = std::find_if(
          from, points.end(), [&](const SeriesPoint& point) { return point.part != from->part; });
      const bool has_spread =
          std::any_of(from, to, [](const SeriesPoint& point) { return point.high > point.low; });
      if (has_spread && to - from > 1) {
        SvgPath outline;
        for (auto point = from; point != to; ++point)
          go_to(outline, point == from, point->step, point->high);
        for (auto after = to; after != from; --after) {
          const SeriesPoint& point = *std::prev(after);
          go_to(outline, false, point.step, point.low);
        }
        svg += svg_line(cat("band f", look), outline.close());
      }
      from = to;
    }
    return svg;
  }

  // The line through the points. A point that no line reaches is drawn as a dot.
  std::string curve(const SeriesPoints& points, size_t look) const {
    SvgPath line;
    std::string dots;
    for (const size_t i : indices_of(points)) {
      const bool begins = i == 0 || points[i].part != points[i - 1].part;
      const bool ends = i + 1 == points.size() || points[i + 1].part != points[i].part;
      go_to(line, begins, points[i].step, points[i].mean);
      if ((begins && ends) || points.size() <= kFewPoints)
        dots += dot(points[i], look, 2.6);
    }
    return svg_line(cat("curve k", look), line) + dots;
  }

  // `look` is the number of the series in the chart, from 1.
  std::string dot(const SeriesPoint& point, size_t look, double radius) const {
    return svg_element("circle",
                       {{"class", cat("f", look)},
                        {"r", radius},
                        {"cx", x_of(point.step)},
                        {"cy", y_of(point.mean)}});
  }

  // A path begins anew where a part does.
  void go_to(SvgPath& path, bool begins, double step, double value) const {
    if (begins) {
      path.move(x_of(step), y_of(value));
    } else {
      path.line(x_of(step), y_of(value));
    }
  }

  // Series of one chart may have values at different steps.
  static const SeriesPoint& nearest(const SeriesPoints& points, double step) {
    return *std::ranges::min_element(
        points, {}, [&](const SeriesPoint& point) { return std::abs(point.step - step); });
  }

  // The stripes, each with its tip.
  std::string columns() const {
    const double width = (kWidth - kLeft - kRight) / kColumns;
    std::string svg;
    for (int i = 0; i < kColumns; ++i) {
      const double left = kLeft + i * width;
      const double step = x_.least + (i + 0.5) / kColumns * (x_.most - x_.least);
      const auto stripe = svg_element(
          "rect",
          {{"x", left}, {"y", kTop}, {"width", width}, {"height", kHeight - kTop - kBottom}});
      svg += svg_element("g", {{"class", "col"}}, stripe + tip(step)) + "\n";
    }
    return svg;
  }

  // The tip's line for a series: its value at this point, and the spread of what it stands for.
  std::string tip_line(const Series& series, const SeriesPoint& point) const {
    std::string line = value_text(series.name, point.mean);
    if (series_.size() > 1)
      line = cat(fit_text(series.name, 22), " ", line);
    if (point.high > point.low)
      line += cat(" (", number_text(point.low), " … ", number_text(point.high), ")");
    return line;
  }

  // The values at the point that is nearest to `step`, in a box beside an upright line. The box is
  // on the side where there is more room.
  std::string tip(double step) const {
    constexpr double kLine = 15;
    const double at = nearest(points_.front(), step).step;
    Strings lines = {cat(x_name_, " ", number_text(at))};
    std::string dots;
    for (const size_t i : indices_of(points_)) {
      const SeriesPoint& point = nearest(points_[i], at);
      lines.push_back(tip_line(*series_[i], point));
      dots += dot(point, i + 1, 3.4);
    }
    double width = 0;
    for (const auto& line : lines)
      width = std::max(width, text_width(line, kTipFont) + 14.0);
    const double x = x_of(at);
    const double left =
        x < kWidth / 2 ? std::min(x + 9, kWidth - width) : std::max(0.0, x - width - 9);
    double baseline = kTop + 16;
    std::string words;
    for (const auto& line : lines) {
      words += svg_label(left + 7, baseline, line);
      baseline += kLine;
    }
    const auto box = svg_element("rect",
                                 {{"class", "box"},
                                  {"rx", 5},
                                  {"x", left},
                                  {"y", kTop},
                                  {"width", width},
                                  {"height", baseline - kTop - 7}});
    const auto upright = svg_line("", SvgPath().move(x, kTop).vertical(kHeight - kBottom));
    return svg_element("g", {{"class", "tip"}}, upright + dots + box + words);
  }

  // A single line needs no legend: the caption names it.
  std::string legend() const {
    if (series_.size() < 2)
      return {};
    std::string html = "<ul class=\"legend\">\n";
    for (const size_t i : indices_of(series_)) {
      const auto line = svg_line(cat("curve k", i + 1), SvgPath().move(0, 4).horizontal(22));
      html += cat("<li>",
                  svg_element("svg", {{"class", "dash chart"}, {"viewBox", "0 0 22 8"}}, line),
                  xml_text(series_[i]->name),
                  "</li>\n");
    }
    return html + "</ul>\n";
  }

  const ChartSeries& series_;
  const std::string x_name_;
  std::vector<SeriesPoints> points_;
  Range x_;
  Range y_;
  bool is_log_ = false;
};

// Series of one family share a chart: "validation_loss" is of the family "loss". The shares of time
// that muster::Metrics writes are one family.
std::string family_of(std::string_view name) {
  constexpr std::string_view kTimes = "time/";
  for (size_t i = 0; i < kActivityCategories; ++i) {
    if (name == cat(kTimes, to_string(static_cast<Category>(i))))
      return std::string(kTimes);
  }
  for (const std::string_view kind :
       {"train", "training", "validation", "valid", "val", "eval", "test"}) {
    for (const char separator : {'_', '/', '.', ' ', '-'}) {
      const auto before = cat(kind, separator);
      const auto after = cat(separator, kind);
      if (name.starts_with(before))
        return std::string(name.substr(before.size()));
      if (name.ends_with(after))
        return std::string(name.substr(0, name.size() - after.size()));
    }
  }
  return std::string(name);
}

// The place of a chart in the page. The numbers that people look for first come first: losses, then
// quality, then speed. Numbers that only count up come last.
int importance(std::string_view name) {
  int place = 0;
  for (const std::string_view part : {"loss", "acc", "perplexity", "score", "per_second"}) {
    if (has_text(name, part))
      return place;
    ++place;
  }
  return name == "epoch" || name.ends_with("time") ? 100 : 50;
}

}  // namespace

std::string line_chart(const ChartSeries& series, const std::string& x_name) {
  return LineChart(series, x_name).figure();
}

// A family with more series than a chart may have gets several charts.
std::vector<ChartSeries> charts_of(const std::vector<Series>& series) {
  std::vector<ChartSeries> charts;
  for (const Series& one : series) {
    if (one.points.empty())
      continue;
    auto* const same = element_where(charts, [&](const auto& chart) {
      return chart.size() < kMostLines && family_of(chart.front()->name) == family_of(one.name);
    });
    if (same == nullptr) {
      charts.push_back({&one});
    } else {
      same->push_back(&one);
    }
  }
  // A chart is called by its first series, which is to be the one with the plain name.
  for (auto& chart : charts) {
    std::ranges::stable_sort(chart, {}, [](const Series* series) { return series->name.size(); });
  }
  std::ranges::stable_sort(
      charts, {}, [](const auto& chart) { return importance(chart.front()->name); });
  return charts;
}

}  // namespace muster
