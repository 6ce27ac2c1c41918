#include "muster/launch/straggler_table.h"

#include <algorithm>
#include <cstdio>

#include "muster/base/strings.h"
#include "muster/draw/text_table.h"

namespace muster {

namespace {

constexpr double kWorthATable = 5e-5;  // seconds: what is less is 0.00 ms

// Three digits that count, or so.
std::string step_time_text(double seconds) {
  char text[32];
  const char* const form = seconds < 0.01 ? "%.2f ms" : seconds < 0.1 ? "%.1f ms" : "%.0f ms";
  if (seconds >= 1)
    std::snprintf(text, sizeof(text), "%.2f s", seconds);
  if (seconds < 1)
    std::snprintf(text, sizeof(text), form, seconds * 1e3);
  return text;
}

double of_a_step(const RankTimes& rank, Category category) {
  return rank.seconds[static_cast<size_t>(category)] /
         static_cast<double>(std::max<int64_t>(1, rank.steps));
}

}  // namespace

std::string straggler_table(const Breakdown& breakdown, size_t most) {
  if (!breakdown.straggler || breakdown.straggler->seconds_a_step < kWorthATable)
    return {};
  std::vector<RankTimes> ranks = breakdown.ranks;
  std::stable_sort(ranks.begin(), ranks.end(), [](const RankTimes& one, const RankTimes& other) {
    return one.own_of_a_step() > other.own_of_a_step();
  });
  const size_t shown = std::min(most, ranks.size());
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < shown; ++i) {
    const RankTimes& rank = ranks[i];
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
  if (shown < ranks.size())
    text += cat("and ", plural(static_cast<int64_t>(ranks.size() - shown), "faster rank"), "\n");
  return text;
}

}  // namespace muster
