#include <algorithm>
#include <cmath>
#include <set>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/bench/collectives_bench.h"

namespace muster {

namespace {

constexpr double kPlotWidth = 720, kPlotHeight = 440, kLeft = 80, kRight = 130, kTop = 40, kBottom = 50;
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e933c", "#8d6a9f", "#edae49"};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string time_text(double us) {
  if (us >= 1e6) return cat(std::lround(us / 1e6), " s");
  if (us >= 1e3) return cat(std::lround(us / 1e3), " ms");
  return cat(std::lround(us), " µs");
}

// From a value to a place on one logarithmic axis.
struct Axis {
  double low, high, from, to;
  double at(double value) const {
    return from +
           (std::log(value) - std::log(low)) / std::max(1e-9, std::log(high) - std::log(low)) * (to - from);
  }
};

}  // namespace

std::string draw_times(const std::vector<CollectiveTime>& times, const std::string& title) {
  std::string svg =
      cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", number(kPlotWidth), " ",
          number(kPlotHeight),
          "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
          "fill=\"white\"/>\n<text x=\"80\" y=\"24\" font-size=\"15\">",
          title, "</text>\n");
  if (times.empty()) return svg + "</svg>\n";
  double low = 1e18, high = 1;
  std::set<int64_t> sizes;
  for (const CollectiveTime& time : times) {
    low = std::min(low, time.us);
    high = std::max(high, time.us);
    sizes.insert(time.bytes);
  }
  const Axis x{.low = static_cast<double>(*sizes.begin()),
               .high = static_cast<double>(*sizes.rbegin()),
               .from = kLeft,
               .to = kPlotWidth - kRight};
  const Axis y{.low = std::pow(10, std::floor(std::log10(low))),
               .high = std::pow(10, std::ceil(std::log10(high))),
               .from = kPlotHeight - kBottom,
               .to = kTop};
  for (double us = y.low; us <= y.high * 1.001; us *= 10) {
    svg += cat("<path d=\"M", number(x.from), " ", number(y.at(us)), "H", number(x.to),
               "\" stroke=\"#ddd\"/><text x=\"", number(x.from - 8), "\" y=\"", number(y.at(us) + 4),
               "\" text-anchor=\"end\">", time_text(us), "</text>\n");
  }
  for (const int64_t bytes : sizes) {
    svg += cat("<text x=\"", number(x.at(static_cast<double>(bytes))), "\" y=\"",
               number(kPlotHeight - kBottom + 20), "\" text-anchor=\"middle\" font-size=\"10\">",
               format_bytes(static_cast<uint64_t>(bytes)), "</text>\n");
  }
  std::vector<std::string> names;
  for (const CollectiveTime& time : times)
    if (std::find(names.begin(), names.end(), time.backend) == names.end()) names.push_back(time.backend);
  for (size_t i = 0; i < names.size(); ++i) {
    const char* const colour = kColours[i % std::size(kColours)];
    std::string path;
    double end = 0;
    for (const CollectiveTime& time : times) {
      if (time.backend != names[i]) continue;
      path += cat(path.empty() ? "M" : "L", number(x.at(static_cast<double>(time.bytes))), " ",
                  number(y.at(time.us)));
      end = y.at(time.us);
    }
    svg +=
        cat("<path d=\"", path, "\" fill=\"none\" stroke=\"", colour, "\" stroke-width=\"2\"/><text x=\"",
            number(x.to + 8), "\" y=\"", number(end + 4), "\" fill=\"", colour, "\">", names[i], "</text>\n");
  }
  return svg + "</svg>\n";
}

}  // namespace muster
