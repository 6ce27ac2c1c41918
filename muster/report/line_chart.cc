#include "muster/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "muster/base/strings.h"
#include "muster/draw/xml_text.h"
#include "muster/report/html.h"
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
constexpr size_t kMostPoints = 400;  // a pixel each
constexpr int kColumns = 48;         // where the pointer may rest
constexpr double kLogFrom = 1000;    // the largest value over the least
constexpr int kTipFont = 11;

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
  LineChart(const std::vector<const Series*>& series, std::string x_name)
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

  std::string figure() const {
    return cat("<figure>\n", caption(), "<svg class=\"chart\" viewBox=\"0 0 ", kWidth, " ", kHeight,
               "\" role=\"img\" aria-label=\"", xml_text(description()), "\">\n", grid(), curves(), columns(),
               "</svg>\n", legend(), "</figure>\n");
  }

 private:
  // A range of nothing is drawn as one of something, and curves do not touch the frame.
  void widen() {
    if (x_.least == x_.most) {
      x_.least -= 1;
      x_.most += 1;
    }
    if (is_log_) return;
    double margin = (y_.most - y_.least) * 0.05;
    // What rounding alone can make is no range either.
    if (margin < 1e-12 * std::abs(y_.most)) margin = 0;
    if (margin == 0) margin = y_.most == 0 ? 1 : std::abs(y_.most) * 0.1;
    const bool above_zero = y_.least >= 0;
    y_.least -= margin;
    y_.most += margin;
    if (above_zero) y_.least = std::max(0.0, y_.least);
  }

  double x_of(double step) const {
    return kLeft + (step - x_.least) / (x_.most - x_.least) * (kWidth - kLeft - kRight);
  }
  double y_of(double value) const {
    const double share = is_log_ ? std::log(value / y_.least) / std::log(y_.most / y_.least)
                                 : (value - y_.least) / (y_.most - y_.least);
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }

  std::string description() const {
    std::vector<std::string> names;
    for (const Series* const one : series_)
      names.push_back(cat(one->name, " from ", number_text(one->first), " to ", number_text(one->last)));
    return cat(join(names, ", "), " over ", x_name_, " ", number_text(x_.least), " to ",
               number_text(x_.most));
  }

  std::string caption() const {
    const Series& first = *series_.front();
    const char* const notes = is_log_ ? " · logarithmic" : "";
    return cat("<figcaption><h3>", xml_text(first.name), "<span class=\"soft small\">", notes,
               "</span></h3><span class=\"now\">", xml_text(value_text(first.name, first.last)), " at ",
               xml_text(x_name_), " ", xml_text(number_text(first.last_step)), "</span></figcaption>\n");
  }

  std::vector<double> value_ticks() const {
    if (!is_log_) return ticks_of(y_.least, y_.most, 5);
    std::vector<double> ticks;
    const int first = static_cast<int>(std::ceil(std::log10(y_.least) - 1e-9));
    const int last = static_cast<int>(std::floor(std::log10(y_.most) + 1e-9));
    const int step = std::max(1, (last - first) / 5 + ((last - first) % 5 > 0 && last - first > 5 ? 1 : 0));
    for (int power = first; power <= last; power += step) ticks.push_back(std::pow(10, power));
    return ticks;
  }

  std::string grid() const {
    const std::string right = coordinate(kWidth - kRight);
    const std::string bottom = coordinate(kHeight - kBottom);
    std::string svg;
    for (const double tick : value_ticks()) {
      const std::string y = coordinate(y_of(tick));
      svg += cat("<path class=\"grid\" d=\"M", kLeft, " ", y, "H", right, "\"/><text class=\"end\" x=\"",
                 kLeft - 6, "\" y=\"", coordinate(y_of(tick) + 4), "\">", tick_text(tick), "</text>\n");
    }
    for (const double tick : ticks_of(x_.least, x_.most, 6)) {
      const double x = x_of(tick);
      svg += cat("<path class=\"grid\" d=\"M", coordinate(x), " ", kTop, "V", bottom,
                 "\"/><text class=\"mid\" x=\"", coordinate(std::min(x, kWidth - 14)), "\" y=\"",
                 kHeight - kBottom + 15, "\">", tick_text(tick), "</text>\n");
    }
    return cat(svg, "<path class=\"axis\" d=\"M", kLeft, " ", bottom, "H", right,
               "\"/><text class=\"mid\" x=\"", coordinate((kLeft + kWidth - kRight) / 2), "\" y=\"",
               kHeight - 5, "\">", xml_text(x_name_), "</text>\n");
  }

  std::string curves() const {
    std::string svg;
    for (size_t i = 0; i < points_.size(); ++i) {
      svg += band(points_[i], i + 1);
      svg += curve(points_[i], i + 1);
    }
    return svg;
  }

  // From the least to the most of the values that each point stands for.
  std::string band(const std::vector<SeriesPoint>& points, size_t look) const {
    std::string svg;
    for (size_t from = 0; from < points.size();) {
      size_t to = from;
      bool spread = false;
      for (; to < points.size() && points[to].part == points[from].part; ++to)
        spread = spread || points[to].high > points[to].low;
      if (spread && to - from > 1) {
        std::string path;
        for (size_t i = from; i < to; ++i)
          path += place(i == from ? "M" : "L", points[i].step, points[i].high);
        for (size_t i = to; i-- > from;) path += place("L", points[i].step, points[i].low);
        svg += cat("<path class=\"band f", look, "\" d=\"", path, "Z\"/>\n");
      }
      from = to;
    }
    return svg;
  }

  std::string curve(const std::vector<SeriesPoint>& points, size_t look) const {
    std::string path;
    std::string dots;
    for (size_t i = 0; i < points.size(); ++i) {
      const bool begins = i == 0 || points[i].part != points[i - 1].part;
      const bool ends = i + 1 == points.size() || points[i + 1].part != points[i].part;
      path += place(begins ? "M" : "L", points[i].step, points[i].mean);
      if ((begins && ends) || points.size() <= 12)
        dots += cat("<circle class=\"f", look, "\" r=\"2.6\" cx=\"", coordinate(x_of(points[i].step)),
                    "\" cy=\"", coordinate(y_of(points[i].mean)), "\"/>");
    }
    return cat("<path class=\"curve k", look, "\" d=\"", path, "\"/>\n", dots);
  }

  std::string place(const char* command, double step, double value) const {
    return cat(command, coordinate(x_of(step)), " ", coordinate(y_of(value)));
  }

  static const SeriesPoint& nearest(const std::vector<SeriesPoint>& points, double step) {
    const auto farther = [&](const SeriesPoint& a, const SeriesPoint& b) {
      return std::abs(a.step - step) < std::abs(b.step - step);
    };
    return *std::min_element(points.begin(), points.end(), farther);
  }

  // Upright stripes that show the values below them while the pointer is there.
  std::string columns() const {
    const double width = (kWidth - kLeft - kRight) / kColumns;
    std::string svg;
    for (int i = 0; i < kColumns; ++i) {
      const double left = kLeft + i * width;
      const double step = x_.least + (i + 0.5) / kColumns * (x_.most - x_.least);
      svg += cat("<g class=\"col\"><rect x=\"", coordinate(left), "\" y=\"", kTop, "\" width=\"",
                 coordinate(width), "\" height=\"", kHeight - kTop - kBottom, "\"/>", tip(step), "</g>\n");
    }
    return svg;
  }

  std::string tip(double step) const {
    const double at = nearest(points_.front(), step).step;
    std::vector<std::string> lines = {cat(x_name_, " ", number_text(at))};
    std::string dots;
    for (size_t i = 0; i < points_.size(); ++i) {
      const SeriesPoint& point = nearest(points_[i], at);
      std::string line = value_text(series_[i]->name, point.mean);
      if (series_.size() > 1) line = cat(fit_text(series_[i]->name, 22), " ", line);
      if (point.high > point.low)
        line += cat(" (", number_text(point.low), " … ", number_text(point.high), ")");
      lines.push_back(line);
      dots += cat("<circle class=\"f", i + 1, "\" r=\"3.4\" cx=\"", coordinate(x_of(point.step)), "\" cy=\"",
                  coordinate(y_of(point.mean)), "\"/>");
    }
    double width = 0;
    for (const std::string& line : lines)
      width = std::max(width, static_cast<double>(text_width(line, kTipFont)) + 14);
    const double x = x_of(at);
    const double left = x < kWidth / 2 ? std::min(x + 9, kWidth - width) : std::max(0.0, x - width - 9);
    std::string svg =
        cat("<g class=\"tip\"><path d=\"M", coordinate(x), " ", kTop, "V", kHeight - kBottom, "\"/>", dots,
            "<rect class=\"box\" rx=\"5\" x=\"", coordinate(left), "\" y=\"", kTop, "\" width=\"",
            coordinate(width), "\" height=\"", 9 + 15 * static_cast<int>(lines.size()), "\"/>");
    for (size_t i = 0; i < lines.size(); ++i) {
      svg += cat("<text x=\"", coordinate(left + 7), "\" y=\"", kTop + 16 + 15 * static_cast<double>(i),
                 "\">", xml_text(lines[i]), "</text>");
    }
    return svg + "</g>";
  }

  std::string legend() const {
    if (series_.size() < 2) return {};
    std::string html = "<ul class=\"legend\">\n";
    for (size_t i = 0; i < series_.size(); ++i) {
      html += cat("<li><svg class=\"dash chart\" viewBox=\"0 0 22 8\"><path class=\"curve k", i + 1,
                  "\" d=\"M0 4H22\"/></svg>", xml_text(series_[i]->name), "</li>\n");
    }
    return html + "</ul>\n";
  }

  const std::vector<const Series*>& series_;
  const std::string x_name_;
  std::vector<std::vector<SeriesPoint>> points_ = {};
  Range x_ = {};
  Range y_ = {};
  bool is_log_ = false;
};

// "validation_loss" → "loss"; where time went → "time/".
std::string family_of(std::string_view name) {
  constexpr std::string_view kTimes = "time/";  // muster::Metrics writes them
  for (size_t i = 0; i < kActivityCategories; ++i)
    if (name == cat(kTimes, to_string(static_cast<Category>(i)))) return std::string(kTimes);
  for (const std::string_view kind : {"train", "training", "validation", "valid", "val", "eval", "test"}) {
    for (const char separator : {'_', '/', '.', ' ', '-'}) {
      const std::string before = cat(kind, separator);
      const std::string after = cat(separator, kind);
      if (name.starts_with(before)) return std::string(name.substr(before.size()));
      if (name.ends_with(after)) return std::string(name.substr(0, name.size() - after.size()));
    }
  }
  return std::string(name);
}

// What people look for first comes first: losses, then how good it is, then how fast; what only counts up
// comes last.
int importance(std::string_view name) {
  constexpr const char* kFirst[] = {"loss", "acc", "perplexity", "score", "per_second"};
  for (int i = 0; i < static_cast<int>(std::size(kFirst)); ++i) {
    if (name.find(kFirst[i]) != std::string_view::npos) return i;
  }
  return name == "epoch" || name.ends_with("time") ? 100 : 50;
}

}  // namespace

std::string line_chart(const std::vector<const Series*>& series, const std::string& x_name) {
  return LineChart(series, x_name).figure();
}

std::vector<std::vector<const Series*>> charts_of(const std::vector<Series>& series) {
  std::vector<std::vector<const Series*>> charts;
  for (const Series& one : series) {
    if (one.points.empty()) continue;
    const auto same = std::find_if(charts.begin(), charts.end(), [&](const auto& chart) {
      return chart.size() < kMostLines && family_of(chart.front()->name) == family_of(one.name);
    });
    if (same == charts.end()) {
      charts.push_back({&one});
    } else {
      same->push_back(&one);
    }
  }
  for (auto& chart : charts) {  // the plain name first: it is the chart's
    std::stable_sort(chart.begin(), chart.end(),
                     [](const Series* a, const Series* b) { return a->name.size() < b->name.size(); });
  }
  std::stable_sort(charts.begin(), charts.end(), [](const auto& a, const auto& b) {
    return importance(a.front()->name) < importance(b.front()->name);
  });
  return charts;
}

}  // namespace muster
