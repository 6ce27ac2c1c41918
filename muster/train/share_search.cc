// A search by trials: shares that should be faster are tried, and kept if a step was. Only the
// measured time of a step decides, since ranks disturb each other in ways that no model of them
// knows.
#include "muster/train/share_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/saved_state.h"

namespace muster {

namespace {

constexpr int64_t kLongestRest = 16;  // comparisons without a trial, after trials that failed

// A rank's time is taken to grow with its samples.
Doubles seconds_a_sample(const Doubles& seconds, const Int64s& shares) {
  Doubles of_one(seconds.size());
  for (const size_t rank : indices_of(seconds))
    of_one[rank] = seconds[rank] / as_number(shares[rank]);
  return of_one;
}

// The seconds of a step: all wait for the rank that takes longest.
double longest_step(const Int64s& shares, const Doubles& of_one) {
  double longest = 0;
  for (const size_t rank : indices_of(shares))
    longest = std::max(longest, as_number(shares[rank]) * of_one[rank]);
  return longest;
}

// Returns shares of the same sum, `part` of the way from one to the other. They are rounded towards
// `from`, and are `from` itself where nothing is left of the way.
Int64s between(const Int64s& from, const Int64s& to, double part) {
  Int64s shares = from;
  for (const size_t rank : indices_of(from))
    shares[rank] += std::llround(std::trunc(as_number(to[rank] - from[rank]) * part));
  // The samples that rounding has left over go, one after the other, to the rank that is furthest
  // from its goal.
  const int64_t left = sum_of(from) - sum_of(shares);
  const int64_t one = left > 0 ? 1 : -1;
  for (int64_t given = 0; given != left; given += one) {
    size_t furthest = 0;
    for (size_t rank = 1; rank < from.size(); ++rank)
      if (one * (to[rank] - shares[rank]) > one * (to[furthest] - shares[furthest]))
        furthest = rank;
    shares[furthest] += one;
  }
  return shares;
}

// One digit behind the point is enough for a message.
double in_ms(double seconds) {
  return std::round(seconds * 1e4) / 10;
}

}  // namespace

Int64s shares_by_speed(const Doubles& seconds_a_sample, int64_t sum) {
  const int64_t ranks = std::ssize(seconds_a_sample);
  const bool are_times = all_of(
      seconds_a_sample, [](double seconds) { return std::isfinite(seconds) && seconds > 0; });
  if (!are_times || ranks == 0 || sum < ranks) {
    throw invalid_argument(
        "batch shares: expected a sample or more for each rank, and times above 0, got ",
        plural(sum, "sample"),
        " and [",
        join(seconds_a_sample, ", "),
        "]");
  }
  double speed_of_all =
      sum_of<double>(seconds_a_sample, [&](const double seconds) { return 1 / seconds; });
  // Every rank gets one sample and the whole part of its share of the others. Each sample that is
  // left goes to the rank that would be ready with it first.
  Int64s shares;
  for (const double seconds : seconds_a_sample) {
    const double part = as_number(sum - ranks) / (seconds * speed_of_all);
    shares.push_back(1 + static_cast<int64_t>(part));
  }
  using Ready = std::pair<double, size_t>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> next;
  const auto with_one_more = [&](size_t rank) {
    return Ready(as_number(shares[rank] + 1) * seconds_a_sample[rank], rank);
  };
  for (const size_t rank : indices_of(shares))
    next.push(with_one_more(rank));
  for (int64_t left = sum - sum_of(shares); left > 0; --left) {
    const size_t rank = next.top().second;
    next.pop();
    ++shares[rank];
    next.push(with_one_more(rank));
  }
  return shares;
}

// A trial is judged by the slowest rank, as the step is.
bool ShareSearch::observe(const Doubles& seconds) {
  const auto [shortest, took] = std::ranges::minmax(seconds);
  if (shortest <= 0)
    return false;  // a rank has measured nothing
  if (shares_ != kept_) {
    if (took >= kept_seconds_)
      return go_back(took);
    kept_ = shares_;
    reach_ = 1;
    next_rest_ = 1;
  }
  kept_seconds_ = took;
  if (rest_ > 0) {
    --rest_;
    return false;
  }
  return try_others(seconds);
}

// The next trial goes half as far, and comes later each time. Otherwise noise would be tried for
// ever.
bool ShareSearch::go_back(double took) {
  reason_ = cat("[",
                join(shares_, ", "),
                "] become [",
                join(kept_, ", "),
                "] again: a step took ",
                in_ms(took),
                " ms in place of ",
                in_ms(kept_seconds_));
  shares_ = kept_;
  reach_ /= 2;
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
  return true;
}

// A trial costs a step's time if it fails, so it must promise something.
bool ShareSearch::try_others(const Doubles& seconds) {
  const auto of_one = seconds_a_sample(seconds, kept_);
  const auto best = shares_by_speed(of_one, sum_of(kept_));
  const auto next = between(kept_, best, reach_);
  const double expected = longest_step(next, of_one);
  if (expected > (1 - at_least_) * kept_seconds_) {
    reach_ = 1;  // where nothing is to be won, the next trial is for something new
    return false;
  }
  reason_ = cat("[",
                join(kept_, ", "),
                "] become [",
                join(next, ", "),
                "]: a step's computing should take ",
                in_ms(expected),
                " ms in place of ",
                in_ms(kept_seconds_));
  shares_ = next;
  return true;
}

}  // namespace muster
