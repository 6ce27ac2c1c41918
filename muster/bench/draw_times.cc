// Draws the times of a collective by size as an SVG, with a line for each backend. Both axes are
// logarithmic: sizes and times span several decades.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ranges>
#include <set>
#include <string>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/bench/collectives_bench.h"
#include "muster/draw/svg.h"
#include "muster/draw/xml_text.h"

namespace muster {

namespace {

// In units of the picture. The margins have room for the texts beside the axes.
constexpr double kPlotWidth = 720;
constexpr double kPlotHeight = 440;
constexpr double kLeftMargin = 80;
constexpr double kRightMargin = 130;
constexpr double kTopMargin = 40;
constexpr double kBottomMargin = 50;
// A backend has the colour of its place in the table; from the sixth on they repeat.
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e933c", "#8d6a9f", "#edae49"};

// No clock is finer. On a logarithmic axis 0 is nowhere.
constexpr double kLeastUs = 1e-3;

// Ticks are powers of ten, so a unit needs no fraction.
std::string time_text(double us) {
  if (us >= 1e6)
    return cat(std::lround(us / 1e6), " s");
  if (us >= 1e3)
    return cat(std::lround(us / 1e3), " ms");
  if (us < 1)
    return cat(std::lround(us * 1e3), " ns");
  return cat(std::lround(us), " µs");
}

double drawn_us(const CollectiveTime& time) {
  return std::max(time.us, kLeastUs);
}

// A logarithmic axis: `low` is drawn at `from`, and `high` at `to`. A table of one size has an axis
// without length, which must not divide by zero.
struct Axis {
  double low, high, from, to;
  double at(double value) const {
    const double length = std::max(1e-9, std::log(high) - std::log(low));
    return from + (std::log(value) - std::log(low)) / length * (to - from);
  }
};

// Without an anchor or a colour, SVG's own defaults hold.
std::string label(
    double x, double y, const std::string& text, const char* anchor = "", const char* colour = "") {
  return svg_element("text",
                     {{"x", x}, {"y", y}, {"text-anchor", anchor}, {"fill", colour}},
                     xml_text(text)) +
         "\n";
}

// The axes of the picture, and what is drawn along them. The time axis begins and ends at a power
// of ten.
struct Plot {
  Axis x, y;
  std::set<double> sizes;  // in bytes

  explicit Plot(const CollectiveTimes& times) {
    for (const CollectiveTime& time : times)
      sizes.insert(static_cast<double>(time.bytes));
    const auto [least, most] = std::ranges::minmax(times | std::views::transform(drawn_us));
    x = {.low = *sizes.begin(),
         .high = *sizes.rbegin(),
         .from = kLeftMargin,
         .to = kPlotWidth - kRightMargin};
    y = {.low = std::pow(10, std::floor(std::log10(least))),
         .high = std::pow(10, std::ceil(std::log10(most))),
         .from = kPlotHeight - kBottomMargin,
         .to = kTopMargin};
  }

  std::string grid() const {
    std::string svg;
    for (double us = y.low; us < 3 * y.high; us *= 10) {
      const std::string line = SvgPath().move(x.from, y.at(us)).horizontal(x.to).text();
      svg += svg_element("path", {{"d", line}, {"stroke", "#ddd"}}) + "\n";
      svg += label(x.from - 8, y.at(us) + 4, time_text(us), "end");
    }
    for (const double bytes : sizes) {
      svg += label(x.at(bytes), y.from + 20, format_bytes(static_cast<uint64_t>(bytes)), "middle");
    }
    return svg;
  }

  // The backend's name stands at the end of its line.
  std::string curve(const CollectiveTimes& times,
                    const std::string& backend,
                    const char* colour) const {
    SvgPath path;
    double end = 0;
    for (const CollectiveTime& time : times) {
      if (time.backend != backend)
        continue;
      const double at = x.at(static_cast<double>(time.bytes));
      end = y.at(drawn_us(time));
      if (path.empty()) {
        path.move(at, end);
      } else {
        path.line(at, end);
      }
    }
    return svg_element(
               "path",
               {{"d", path.text()}, {"fill", "none"}, {"stroke", colour}, {"stroke-width", 2}}) +
           "\n" + label(x.to + 8, end + 4, backend, "", colour);
  }
};

}  // namespace

std::string draw_times(const CollectiveTimes& times, const std::string& title) {
  const auto background =
      svg_element("rect", {{"width", "100%"}, {"height", "100%"}, {"fill", "white"}});
  const auto head =
      svg_element("text", {{"x", kLeftMargin}, {"y", 24}, {"font-size", 15}}, xml_text(title));
  auto body = cat("\n", background, "\n", head, "\n");
  if (!times.empty()) {
    const Plot plot(times);
    body += plot.grid();
    const Strings backends = distinct(times, &CollectiveTime::backend);
    for (const size_t i : indices_of(backends))
      body += plot.curve(times, backends[i], kColours[i % std::size(kColours)]);
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
