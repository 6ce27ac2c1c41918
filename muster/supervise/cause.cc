#include "muster/supervise/cause.h"

#include <signal.h>

#include <algorithm>

namespace muster {

namespace {

// From the surest cause to the surest consequence.
enum class Weight {
  killed,
  own_error,
  odd_signal,
  odd_code,
  aborted,
  broken_pipe,
  code,
  common_code,
  connection,
  lost_peer,
};

// A program fails so by itself, perhaps of the loss of another; the other signals kill it.
bool is_own_doing(int signal) {
  constexpr int kOwn[] = {SIGABRT, SIGPIPE};
  return std::find(std::begin(kOwn), std::end(kOwn), signal) != std::end(kOwn);
}

bool ended_alike(const End& a, const End& b) {
  return a.signal == b.signal && a.exit_code == b.exit_code;
}

// Those that told no more of themselves than this one, and ended as it did; with it.
std::ptrdiff_t count_alike(const std::vector<End>& ends, const End& end) {
  return std::count_if(ends.begin(), ends.end(), [&](const End& other) {
    return other.account != Account::own_error && ended_alike(other, end);
  });
}

// Whether many have ended in one way, as those do that fail of the same thing.
bool has_crowd(const std::vector<End>& ends) {
  constexpr std::ptrdiff_t kCrowd = 3;
  return std::any_of(ends.begin(), ends.end(), [&](const End& end) {
    return end.account != Account::own_error && count_alike(ends, end) >= kCrowd;
  });
}

Weight weight_of_silent(const End& end) {
  constexpr int kOfAnyError = 1;  // EXIT_FAILURE, and Python's
  if (end.signal == SIGPIPE)
    return Weight::broken_pipe;
  if (end.signal != 0)
    return Weight::aborted;
  return end.exit_code == kOfAnyError ? Weight::common_code : Weight::code;
}

Weight weight_of(const End& end, const std::vector<End>& ends) {
  if (end.signal != 0 && !is_crash(end.signal))
    return Weight::killed;
  if (end.account == Account::lost_peer)
    return Weight::lost_peer;
  if (end.signal != 0 && !is_own_doing(end.signal))
    return Weight::killed;
  if (end.account == Account::own_error)
    return Weight::own_error;
  if (end.account == Account::connection)
    return Weight::connection;
  const bool is_odd = count_alike(ends, end) == 1 && has_crowd(ends);
  if (!is_odd)
    return weight_of_silent(end);
  return end.signal != 0 ? Weight::odd_signal : Weight::odd_code;
}

// Whether ends of this weight say for themselves that they are causes, each of its own.
bool stands_alone(Weight weight) {
  return weight == Weight::killed || weight == Weight::own_error;
}

}  // namespace

bool is_crash(int signal) {
  constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPIPE};
  return std::find(std::begin(kCrashes), std::end(kCrashes), signal) != std::end(kCrashes);
}

Cause cause_among(const std::vector<End>& ends) {
  std::vector<Weight> weights;
  weights.reserve(ends.size());
  for (const End& end : ends)
    weights.push_back(weight_of(end, ends));
  const auto first = std::min_element(weights.begin(), weights.end());
  Cause cause{.index = static_cast<size_t>(first - weights.begin()),
              .is_known = *first != Weight::lost_peer};
  if (stands_alone(*first))
    return cause;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (i != cause.index && weights[i] == *first)
      cause.others.push_back(i);
  }
  return cause;
}

}  // namespace muster
