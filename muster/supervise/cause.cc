// How it works: each end gets a weight, from what the process has told of itself and from how many
// others ended in the same way. The lowest weight is the cause. Ends of the same weight are told
// apart by the order of death only, and the answer names them too, as it does an exit code beside a
// signal where there are too few ends for an odd one out.
#include "muster/supervise/cause.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

// The weights go from the surest cause to the surest consequence.
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

// How many processes ended in which way: by signal and exit code.
using Counts = std::map<std::pair<int, int>, int>;

std::pair<int, int> way_of(const End& end) {
  return {end.signal, end.exit_code};
}

// An end that told an error of its own is never one of a crowd.
Counts count_alike(const std::vector<End>& ends) {
  Counts counts;
  for (const End& end : ends) {
    if (end.account != Account::own_error)
      ++counts[way_of(end)];
  }
  return counts;
}

// Processes that fail of the same thing end in the same way, and these are many.
bool has_crowd(const Counts& counts) {
  constexpr int kCrowd = 3;
  return any_of(counts, [](const auto& entry) { return entry.second >= kCrowd; });
}

// The process told nothing, so its signal or its exit code has to do. Code 1 says the least.
Weight weight_of_silent(const End& end) {
  constexpr int kOfAnyError = 1;  // EXIT_FAILURE, and Python's
  if (end.signal == SIGPIPE)
    return Weight::broken_pipe;
  if (end.signal != 0)
    return Weight::aborted;
  return end.exit_code == kOfAnyError ? Weight::common_code : Weight::code;
}

// A signal from outside comes first, whatever the process told before it was killed. A crash, which
// a lost connection may bring about too, comes after the process's own word.
Weight weight_of(const End& end, const Counts& counts) {
  if (end.signal != 0 && !is_crash(end.signal))
    return Weight::killed;
  if (end.account == Account::lost_peer)
    return Weight::lost_peer;
  // A program ends itself by these signals, perhaps because it has lost another; the other signals
  // kill it.
  if (!is_one_of(end.signal, 0, SIGABRT, SIGPIPE))
    return Weight::killed;
  if (end.account == Account::own_error)
    return Weight::own_error;
  if (end.account == Account::connection)
    return Weight::connection;
  const bool is_odd = counts.at(way_of(end)) == 1 && has_crowd(counts);
  if (!is_odd)
    return weight_of_silent(end);
  return end.signal != 0 ? Weight::odd_signal : Weight::odd_code;
}

// Of two or three that told nothing, an exit code may be what made another abort, or write to
// nobody.
bool may_precede(Weight code, Weight signal) {
  return is_one_of(code, Weight::code, Weight::common_code) &&
         is_one_of(signal, Weight::aborted, Weight::broken_pipe);
}

}  // namespace

bool is_crash(int signal) {
  constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPIPE};
  return contains(kCrashes, signal);
}

Cause cause_among(const std::vector<End>& ends) {
  const Counts counts = count_alike(ends);
  auto weights = mapped(ends, [&](const End& end) { return weight_of(end, counts); });
  const auto first = std::ranges::min_element(weights);
  Cause cause;
  cause.index = first - weights.begin();
  cause.is_known = *first != Weight::lost_peer;
  // Each end of such a weight is a cause of its own, so the first of them has no rivals.
  if (is_one_of(*first, Weight::killed, Weight::own_error))
    return cause;
  const bool is_few = !has_crowd(counts);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (i != cause.index && (weights[i] == *first || (is_few && may_precede(weights[i], *first))))
      cause.others.push_back(i);
  }
  return cause;
}

}  // namespace muster
