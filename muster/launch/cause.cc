#include "muster/launch/cause.h"

#include <algorithm>

#include "muster/base/strings.h"
#include "muster/launch/failure_meaning.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kMoment{250};

bool failed_by_itself(const WorkerExit& exit) {
  return exit.failed() && exit.sent_signal == 0;
}

bool in_one_moment(const WorkerExit& a, const WorkerExit& b) {
  return std::chrono::abs(a.at - b.at) <= kMoment;
}

bool is_killed(const WorkerExit& exit) {
  return exit.signal != 0 && !is_crash(exit.signal);
}

Cause cause_in(const std::vector<const WorkerExit*>& failures) {
  std::vector<End> ends;
  ends.reserve(failures.size());
  for (const WorkerExit* exit : failures)
    ends.push_back(
        {.exit_code = exit->exit_code, .signal = exit->signal, .account = account_of(*exit)});
  return cause_among(ends);
}

std::string names_of(const std::vector<int>& ranks) {
  return cat(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "));
}

std::vector<int> ended_by_muster(const std::vector<WorkerExit>& exits) {
  std::vector<int> ended;
  for (const WorkerExit& exit : exits)
    if (exit.started && exit.sent_signal != 0)
      ended.push_back(exit.rank);
  return ended;
}

// Of a first failure that is but the loss of another.
std::string unknown_cause(const std::vector<WorkerExit>& exits, const WorkerExit& first) {
  const std::vector<int> ended = ended_by_muster(exits);
  const std::string lost =
      first.facts.lost_ranks.empty() ? "another rank" : names_of(first.facts.lost_ranks);
  if (ended.empty())
    return cat("not known: it lost ", lost, ", and so did every rank that failed");
  return cat("not known: it lost ",
             lost,
             ", and no failure of another kind had come when muster ended ",
             names_of(ended),
             "; see what these did");
}

}  // namespace

Account account_of(const WorkerExit& exit) {
  if (is_killed(exit))
    return Account::none;
  if (exit.facts.account != Account::none)
    return exit.facts.account;
  if (exit.facts.code.empty())
    return account_by_words(exit);
  return exit.facts.code == "peer_failed" ? Account::lost_peer : Account::own_error;
}

bool lost_a_peer(const WorkerExit& exit) {
  return account_of(exit) == Account::lost_peer;
}

void put_cause_first(std::vector<WorkerExit>& exits, bool goes_on) {
  const auto first = std::find_if(exits.begin(), exits.end(), failed_by_itself);
  if (first == exits.end())
    return;
  std::vector<const WorkerExit*> failures;
  for (auto exit = first; exit != exits.end(); ++exit) {
    if (failed_by_itself(*exit) && (!goes_on || in_one_moment(*exit, *first)))
      failures.push_back(&*exit);
  }
  const auto cause = first + (failures[cause_in(failures).index] - &*first);
  std::rotate(first, cause, cause + 1);  // the others stay in their order
}

const WorkerExit* first_failure(const std::vector<WorkerExit>& exits) {
  const WorkerExit* first = nullptr;
  for (const WorkerExit& exit : exits) {
    if (!failed_by_itself(exit))
      continue;
    if (first == nullptr)
      first = &exit;
    if (!lost_a_peer(exit))
      return &exit;
  }
  // All that ended by themselves say that they lost a peer: which is one that was still on its way
  // out, and told why. One that our signal killed was not on its way out.
  for (const WorkerExit& exit : exits) {
    const bool by_itself = exit.failed() && exit.signal == 0;
    if (first != nullptr && by_itself && !exit.message.empty() && !lost_a_peer(exit))
      return &exit;
  }
  return first;
}

// One says of itself that its function returned; else it is one that ended with 0, which the first
// may name.
const WorkerExit* left_early(const std::vector<WorkerExit>& exits, const WorkerExit& first) {
  if (!lost_a_peer(first))
    return nullptr;
  const WorkerExit* left = nullptr;
  for (const WorkerExit& exit : exits) {
    if (exit.facts.left_early)
      return &exit;
    if (exit.failed() || exit.sent_signal != 0 || exit.at > first.at)
      continue;
    const std::vector<int>& lost = first.facts.lost_ranks;
    const bool named = std::find(lost.begin(), lost.end(), exit.rank) != lost.end();
    if (left == nullptr || named)
      left = &exit;
    if (named)
      break;
  }
  return left;
}

bool is_cause_known(const std::vector<WorkerExit>& exits, const WorkerExit& first) {
  const bool is_alone = exits.size() == 1;
  return is_alone || !lost_a_peer(first) || left_early(exits, first) != nullptr;
}

std::string doubt_about(const std::vector<WorkerExit>& exits, const WorkerExit& first) {
  if (!is_cause_known(exits, first))
    return unknown_cause(exits, first);
  if (!failed_by_itself(first))
    return "";
  std::vector<const WorkerExit*> failures = {&first};
  for (const WorkerExit& exit : exits)
    if (&exit != &first && failed_by_itself(exit) && in_one_moment(exit, first))
      failures.push_back(&exit);
  const Cause cause = cause_in(failures);
  if (cause.index != 0 || cause.others.empty())
    return "";
  std::vector<int> others;
  for (const size_t i : cause.others)
    others.push_back(failures[i]->rank);
  const std::vector<int> ended = ended_by_muster(exits);
  return cat(
      "not certain: ",
      names_of(others),
      " ended alike in the same moment, and said no more",
      ended.empty() ? "" : cat("; or they lost ", names_of(ended), ", which muster ended then"));
}

}  // namespace muster
