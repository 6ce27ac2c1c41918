// A row a rank, the slowest first, by the time of a step that the rank spent on its own work.
#include "muster/launch/straggler_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "muster/base/strings.h"
#include "muster/draw/text_table.h"

namespace muster {

namespace {

constexpr double kWorthATable = 5e-5;  // seconds; less is shown as 0.00 ms

// A time with about three significant digits.
std::string step_time_text(double seconds) {
  if (seconds < 0.01)
    return fmt::format("{:.2f} ms", seconds * 1e3);
  if (seconds < 0.1)
    return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 1)
    return fmt::format("{:.0f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

// The mean over the rank's steps.
double of_a_step(const RankTimes& rank, Category category) {
  const auto steps = static_cast<double>(std::max<int64_t>(1, rank.steps));
  return rank.seconds[index_of(category)] / steps;
}

}  // namespace

// There is no table where no rank is slower than the others by an amount that the table would show.
// The fastest ranks are left out where there are more than `most`.
std::string straggler_table(const Breakdown& breakdown, size_t most) {
  if (!breakdown.straggler || breakdown.straggler->seconds_a_step < kWorthATable)
    return {};
  auto ranks = breakdown.ranks;
  std::ranges::stable_sort(ranks, std::greater(), &RankTimes::own_of_a_step);
  const size_t left_out = ranks.size() - std::min(most, ranks.size());
  ranks.resize(ranks.size() - left_out);
  TableRows rows;
  for (const RankTimes& rank : ranks) {
    rows.push_back({cat(rank.rank),
                    rank.host,
                    rank.device,
                    step_time_text(rank.own_of_a_step()),
                    step_time_text(of_a_step(rank, Category::compute)),
                    step_time_text(of_a_step(rank, Category::data)),
                    step_time_text(of_a_step(rank, Category::checkpoint)),
                    step_time_text(of_a_step(rank, Category::communication))});
  }
  std::string text = format_table({{"rank", true},
                                   {"host"},
                                   {"device"},
                                   {"own time of a step", true},
                                   {"compute", true},
                                   {"data", true},
                                   {"checkpoint", true},
                                   {"waits for others", true}},
                                  rows);
  if (left_out > 0)
    text += cat("and ", plural(left_out, "faster rank"), "\n");
  return text;
}

}  // namespace muster
