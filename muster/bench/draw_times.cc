// The picture of collective times by size, a line a backend.
#include <algorithm>
#include <cmath>
#include <set>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/bench/collectives_bench.h"
#include "muster/draw/svg.h"
#include "muster/draw/xml_text.h"

namespace muster {

namespace {

constexpr double kPlotWidth = 720, kPlotHeight = 440, kLeft = 80, kRight = 130, kTop = 40,
                 kBottom = 50;
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e933c", "#8d6a9f", "#edae49"};

std::string time_text(double us) {
  if (us >= 1e6)
    return cat(std::lround(us / 1e6), " s");
  if (us >= 1e3)
    return cat(std::lround(us / 1e3), " ms");
  return cat(std::lround(us), " µs");
}

// From a value to a place on one logarithmic axis.
struct Axis {
  double low, high, from, to;
  double at(double value) const {
    return from + (std::log(value) - std::log(low)) /
                      std::max(1e-9, std::log(high) - std::log(low)) * (to - from);
  }
};

std::string words(
    double x, double y, const std::string& text, const char* anchor = "", const char* colour = "") {
  return svg_element("text",
                     {{"x", x}, {"y", y}, {"text-anchor", anchor}, {"fill", colour}},
                     xml_text(text)) +
         "\n";
}

std::vector<std::string> backends_of(const std::vector<CollectiveTime>& times) {
  std::vector<std::string> names;
  for (const CollectiveTime& time : times)
    if (std::find(names.begin(), names.end(), time.backend) == names.end())
      names.push_back(time.backend);
  return names;
}

// The axes of the picture, with their ticks.
struct Plot {
  Axis x, y;
  std::set<int64_t> sizes;

  explicit Plot(const std::vector<CollectiveTime>& times) {
    double low = 1e18, high = 1;
    for (const CollectiveTime& time : times) {
      low = std::min(low, time.us);
      high = std::max(high, time.us);
      sizes.insert(time.bytes);
    }
    x = {.low = static_cast<double>(*sizes.begin()),
         .high = static_cast<double>(*sizes.rbegin()),
         .from = kLeft,
         .to = kPlotWidth - kRight};
    y = {.low = std::pow(10, std::floor(std::log10(low))),
         .high = std::pow(10, std::ceil(std::log10(high))),
         .from = kPlotHeight - kBottom,
         .to = kTop};
  }

  std::string grid() const {
    std::string svg;
    const auto decades = std::lround(std::log10(y.high / y.low));
    for (int64_t decade = 0; decade <= decades; ++decade) {
      const double us = y.low * std::pow(10, decade);
      const std::string line = SvgPath().move(x.from, y.at(us)).horizontal(x.to).text();
      svg += svg_element("path", {{"d", line}, {"stroke", "#ddd"}}) + "\n";
      svg += words(x.from - 8, y.at(us) + 4, time_text(us), "end");
    }
    for (const int64_t bytes : sizes)
      svg += words(x.at(static_cast<double>(bytes)),
                   kPlotHeight - kBottom + 20,
                   format_bytes(static_cast<uint64_t>(bytes)),
                   "middle");
    return svg;
  }

  // With the backend's name at its end.
  std::string curve(const std::vector<CollectiveTime>& times,
                    const std::string& backend,
                    const char* colour) const {
    SvgPath path;
    double end = 0;
    for (const CollectiveTime& time : times) {
      if (time.backend != backend)
        continue;
      const double at = x.at(static_cast<double>(time.bytes));
      end = y.at(time.us);
      if (path.empty()) {
        path.move(at, end);
      } else {
        path.line(at, end);
      }
    }
    return svg_element(
               "path",
               {{"d", path.text()}, {"fill", "none"}, {"stroke", colour}, {"stroke-width", 2}}) +
           "\n" + words(x.to + 8, end + 4, backend, "", colour);
  }
};

}  // namespace

std::string draw_times(const std::vector<CollectiveTime>& times, const std::string& title) {
  std::string body =
      "\n" + svg_element("rect", {{"width", "100%"}, {"height", "100%"}, {"fill", "white"}}) +
      "\n" + svg_element("text", {{"x", kLeft}, {"y", 24}, {"font-size", 15}}, xml_text(title)) +
      "\n";
  if (!times.empty()) {
    const Plot plot(times);
    body += plot.grid();
    const std::vector<std::string> names = backends_of(times);
    for (size_t i = 0; i < names.size(); ++i)
      body += plot.curve(times, names[i], kColours[i % std::size(kColours)]);
  }
  return svg_element("svg",
                     {{"xmlns", "http://www.w3.org/2000/svg"},
                      {"viewBox", cat("0 0 ", kPlotWidth, " ", kPlotHeight)},
                      {"font-family", "sans-serif"},
                      {"font-size", 12}},
                     body) +
         "\n";
}

}  // namespace muster
