// How it works: each rank's totals become seconds by category. A rank's own time of a step is all
// that is neither communication, in which it waits for others, nor outside of the steps; the rank
// with the most is the straggler, if it is clearly above the median.
#include "muster/trace/breakdown.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <ranges>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr double kWorthSaying = 1.05;

// Of no steps there is one, so that a time can be divided by them.
double steps_of(const RankTimes& rank) {
  return static_cast<double>(std::max<int64_t>(1, rank.steps));
}

// A file may say anything: a time below nothing, or a hundred years, is none.
double seconds_of(int64_t nanoseconds) {
  constexpr int64_t kMost = int64_t{3} * 1'000'000'000 * 1'000'000'000;
  return nanoseconds < 0 || nanoseconds > kMost ? 0 : static_cast<double>(nanoseconds) * 1e-9;
}

// A rank that has not ended counts until now, but never less than until its last sign of life.
RankTimes times_of(const ActivityView& view, std::optional<int64_t> now_ns) {
  RankTimes times{.rank = view.rank, .host = view.host, .device = view.device, .steps = view.steps};
  const int64_t last = view.last_sign_ns();
  const bool goes_on = now_ns && !view.closed_ns;
  const auto totals = view.totals_at(goes_on ? std::max(*now_ns, last) : last);
  std::ranges::transform(totals, times.seconds.begin(), seconds_of);
  return times;
}

// The lower of the two middle values, where there are two.
template <class Value>
double median_of(const std::vector<RankTimes>& ranks, const Value& value) {
  Doubles values = mapped(ranks, [&](const RankTimes& rank) { return value(rank); });
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The category in which the rank takes longer than the median by most.
Category category_of_delay(const RankTimes& slowest, const std::vector<RankTimes>& ranks) {
  Category found = Category::compute;
  double most = 0;
  for (const Category category : {Category::compute, Category::data, Category::checkpoint}) {
    const auto of_a_step = [category](const RankTimes& rank) {
      return rank.seconds[index_of(category)] / steps_of(rank);
    };
    const double more = of_a_step(slowest) - median_of(ranks, of_a_step);
    if (more <= most)
      continue;
    most = more;
    found = category;
  }
  return found;
}

// One rank alone holds nobody up, and a rank without steps cannot be compared.
std::optional<Breakdown::Straggler> straggler_of(const std::vector<RankTimes>& ranks) {
  if (ranks.size() < 2)
    return std::nullopt;
  const auto slowest = std::ranges::max_element(ranks, {}, &RankTimes::own_of_a_step);
  const double own = slowest->own_of_a_step();
  const double median = median_of(ranks, std::mem_fn(&RankTimes::own_of_a_step));
  if (median <= 0 || slowest->steps <= 0 || own < kWorthSaying * median)
    return std::nullopt;
  return Breakdown::Straggler{.rank = slowest->rank,
                              .category = category_of_delay(*slowest, ranks),
                              .seconds_a_step = own - median,
                              .ratio = own / median};
}

// Whole percents are enough.
std::string percent(double share) {
  return cat(std::lround(share * 100), " %");
}

// Below ten milliseconds, hundredths of one count.
std::string milliseconds_text(double seconds) {
  if (seconds < 0.01)
    return cat(std::round(seconds * 1e5) / 100, " ms");
  const std::chrono::duration<double> time(seconds);
  return format_duration(std::chrono::duration_cast<std::chrono::nanoseconds>(time));
}

nlohmann::ordered_json by_category(const std::array<double, kActivityCategories>& values) {
  nlohmann::ordered_json object;
  for (const size_t i : indices_of(values))
    object[to_string(static_cast<Category>(i))] = values[i];
  return object;
}

const char* reason_text(Category category) {
  switch (category) {
    case Category::data:
      return "waiting for data";
    case Category::checkpoint:
      return "writing checkpoints";
    default:
      return "computing";
  }
}

}  // namespace

double RankTimes::all() const {
  return sum_of(seconds);
}

double RankTimes::own() const {
  return all() - seconds[index_of(Category::communication)];
}

// Ranks are compared by one step, as a rank that was replaced took fewer.
double RankTimes::own_of_a_step() const {
  return (own() - seconds[index_of(Category::other)]) / steps_of(*this);
}

// The shares are those of all ranks' time together.
std::optional<Breakdown> breakdown_of(const ActivityViews& views,
                                      std::optional<int64_t> now_ns,
                                      int64_t least_steps) {
  Breakdown found;
  const auto has_steps = [&](const ActivityView& view) {
    return view.steps >= least_steps;
  };
  found.ranks = mapped(views | std::views::filter(has_steps),
                       [&](const ActivityView& view) { return times_of(view, now_ns); });
  double all = sum_of<double>(found.ranks, [&](const RankTimes& rank) { return rank.all(); });
  if (all <= 0)
    return std::nullopt;
  for (const RankTimes& rank : found.ranks) {
    for (size_t i = 0; i < kActivityCategories; ++i)
      found.shares[i] += rank.seconds[i] / all;
  }
  found.straggler = straggler_of(found.ranks);
  return found;
}

// A rank that was replaced took fewer steps, so the most of any rank is the job's.
Strings Breakdown::lines() const {
  const int64_t steps = std::ranges::max_element(ranks, {}, &RankTimes::steps)->steps;
  constexpr Category kShown[] = {Category::compute,
                                 Category::communication,
                                 Category::data,
                                 Category::checkpoint,
                                 Category::other};
  const Strings parts = mapped(kShown, [&](Category category) {
    return cat(to_string(category), " ", percent(shares[index_of(category)]));
  });
  Strings lines = {cat("time of ",
                       plural(steps, "step"),
                       " on ",
                       plural(ranks.size(), "rank"),
                       ": ",
                       join(parts, ", "),
                       " (communication: the time in which a rank waits for others)")};
  if (!straggler)
    return lines;
  const auto slowest = std::ranges::find(ranks, straggler->rank, &RankTimes::rank);
  lines.push_back(cat("the others wait for rank ",
                      slowest->rank,
                      " (host ",
                      slowest->host,
                      ", ",
                      slowest->device,
                      "): ",
                      milliseconds_text(straggler->seconds_a_step),
                      " a step longer than the median rank, ",
                      reason_text(straggler->category)));
  return lines;
}

// All categories are there, also those without any time.
std::string Breakdown::json() const {
  nlohmann::ordered_json json = {{"schema", "muster.breakdown/1"}};
  json["shares"] = by_category(shares);
  json["ranks"] = nlohmann::ordered_json::array();
  for (const RankTimes& rank : ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"host", rank.host},
                             {"device", rank.device},
                             {"steps", rank.steps},
                             {"seconds", by_category(rank.seconds)}});
  }
  json["straggler"] = nullptr;
  if (straggler) {
    json["straggler"] = {{"rank", straggler->rank},
                         {"in", to_string(straggler->category)},
                         {"seconds_a_step", straggler->seconds_a_step},
                         {"ratio", straggler->ratio}};
  }
  return json.dump(2) + "\n";
}

}  // namespace muster
