// Lines over steps as one figure of the report: axes, ticks, the spread of what was thinned out,
// and the values where the pointer rests, without a script. Pure.
#pragma once

#include <string>
#include <vector>

#include "muster/report/metrics_file.h"

namespace muster {

// What one chart shows.
using ChartSeries = std::vector<const Series*>;

inline constexpr size_t kMostLines = 4;  // of one chart; their looks differ by more than colour

// `series` has 1 to kMostLines with at least a value each; `x_name` is "step" or "line".
std::string line_chart(const ChartSeries& series, const std::string& x_name);

// Returns which series share a chart: those whose names differ only by train_, validation_, test_
// and the like. Losses come first, then quality and speed, then the others in the order of the
// file.
std::vector<ChartSeries> charts_of(const std::vector<Series>& series);

}  // namespace muster
