// All ranks of a job end when one fails, and most of them fail too: of the loss of the first. Each
// failure is classed by what the rank has told (account_of), and cause_among picks the one that
// explains the others. Where none does, doubt_about says so.
#include "muster/launch/cause.h"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/launch/failure_meaning.h"

namespace muster {

namespace {

// Failures this close together may have come in any order.
constexpr milliseconds kMoment{250};

// A rank that lost one which was replaced longer ago has lost another since.
constexpr milliseconds kOfTheLoss{60'000};

// How long after `b` rank `a` ended. The time of day may have jumped between the two, so it counts
// only for ranks of different hosts.
milliseconds time_between(const RankExit& b, const RankExit& a) {
  constexpr milliseconds kNotKnown{0};
  const bool share_a_clock =
      a.host == b.host && a.host_clock != kNotKnown && b.host_clock != kNotKnown;
  if (share_a_clock)
    return a.host_clock - b.host_clock;
  return std::chrono::floor<milliseconds>(a.at - b.at);
}

bool in_one_moment(const RankExit& a, const RankExit& b) {
  return std::chrono::abs(time_between(a, b)) <= kMoment;
}

Cause cause_in(const std::vector<const RankExit*>& failures) {
  return cause_among(mapped(failures, [](const RankExit* exit) {
    return End{.exit_code = exit->exit_code, .signal = exit->signal, .account = account_of(*exit)};
  }));
}

// Those ends of which `is_wanted` is true.
template <class Exits, class Predicate>
std::vector<const RankExit*> pointers_to(const Exits& exits, Predicate is_wanted) {
  std::vector<const RankExit*> wanted;
  for (const RankExit& exit : exits) {
    if (is_wanted(exit))
      wanted.push_back(&exit);
  }
  return wanted;
}

// The ranks that had no chance to tell a failure of their own.
Ints ended_by_muster(const RankExits& exits) {
  return mapped(exits | std::views::filter([&](const RankExit& exit) {
                  return exit.started && exit.sent_signal != 0;
                }),
                &RankExit::rank);
}

// The doubt about a first failure that is but the loss of another rank.
std::string unknown_cause(const RankExits& exits, const RankExit& first) {
  const Ints ended = ended_by_muster(exits);
  const std::string lost =
      first.facts.lost_ranks.empty() ? "another rank" : rank_list(first.facts.lost_ranks);
  if (ended.empty())
    return cat("not known: it lost ", lost, ", and so did every rank that failed");
  return cat("not known: it lost ",
             lost,
             ", and no failure of another kind had come when muster ended ",
             rank_list(ended),
             "; see what these did");
}

}  // namespace

std::string rank_list(const Ints& ranks) {
  return cat(word_for(ranks.size(), "rank ", "ranks "), join(ranks, ", "));
}

Account account_of(const RankExit& exit) {
  // A signal from outside ended it; a crash is the rank's own doing.
  if (exit.signal != 0 && !is_crash(exit.signal))
    return Account::none;
  if (exit.facts.account != Account::none)
    return exit.facts.account;
  if (exit.facts.code.empty())
    return account_by_words(exit);
  return exit.facts.code == "peer_failed" ? Account::lost_peer : Account::own_error;
}

bool lost_a_peer(const RankExit& exit) {
  return account_of(exit) == Account::lost_peer;
}

void put_cause_first(RankExits& exits, bool goes_on) {
  const auto first = std::ranges::find_if(exits, &RankExit::failed_by_itself);
  if (first == exits.end())
    return;
  const auto failures = pointers_to(exits, [&](const RankExit& exit) {
    return exit.failed_by_itself() && (!goes_on || in_one_moment(exit, *first));
  });
  const auto cause = first + (failures[cause_in(failures).index] - &*first);
  std::rotate(first, cause, cause + 1);  // the others stay in their order
}

void put_replaced_first(RankExits& exits, const RankExits& replaced) {
  const RankExit* const first = first_failure(exits);
  const bool is_loss =
      first != nullptr && lost_a_peer(*first) && left_early(exits, *first) == nullptr;
  if (!is_loss || replaced.empty() || time_between(replaced.front(), *first) > kOfTheLoss)
    return;
  std::erase_if(
      exits, [&](const RankExit& exit) { return contains(replaced, exit.rank, &RankExit::rank); });
  exits.insert(exits.begin(), replaced.begin(), replaced.end());
}

const RankExit* first_failure(const RankExits& exits) {
  const RankExit* const first = element_where(exits, &RankExit::failed_by_itself);
  if (first == nullptr)
    return nullptr;
  const RankExit* const own = element_where(
      exits, [](const RankExit& exit) { return exit.failed_by_itself() && !lost_a_peer(exit); });
  if (own != nullptr)
    return own;
  // All that ended by themselves say that they lost a peer. That may be a rank that was still on
  // its way out when our signal came, and told why. One that the signal killed was not on its way
  // out.
  const RankExit* const leaving = element_where(exits, [](const RankExit& exit) {
    return exit.failed() && exit.signal == 0 && !exit.message.empty() && !lost_a_peer(exit);
  });
  return leaving != nullptr ? leaving : first;
}

// A rank that says that its function returned is the one. Else it is a rank that ended with exit
// code 0 before, best one that `first` names.
const RankExit* left_early(const RankExits& exits, const RankExit& first) {
  if (!lost_a_peer(first))
    return nullptr;
  const RankExit* left = nullptr;
  for (const RankExit& exit : exits) {
    if (exit.facts.left_early)
      return &exit;
    const bool is_later = time_between(first, exit).count() > 0;
    if (exit.failed() || exit.sent_signal != 0 || is_later)
      continue;
    const bool named = contains(first.facts.lost_ranks, exit.rank);
    if (left == nullptr || named)
      left = &exit;
    if (named)
      break;
  }
  return left;
}

bool is_cause_known(const RankExits& exits, const RankExit& first) {
  const bool is_alone = exits.size() == 1;
  return is_alone || !lost_a_peer(first) || left_early(exits, first) != nullptr;
}

std::string doubt_about(const RankExits& exits, const RankExit& first) {
  if (!is_cause_known(exits, first))
    return unknown_cause(exits, first);
  if (!first.failed_by_itself())
    return "";
  std::vector<const RankExit*> failures = {&first};
  append_all(failures, pointers_to(exits, [&](const RankExit& exit) {
               return &exit != &first && exit.failed_by_itself() && in_one_moment(exit, first);
             }));
  const Cause cause = cause_in(failures);
  if (cause.index != 0 || cause.others.empty())
    return "";
  const auto others = mapped(cause.others, [&](const size_t i) { return failures[i]->rank; });
  const bool alike = all_of(cause.others, [&](const size_t i) {
    return failures[i]->exit_code == first.exit_code && failures[i]->signal == first.signal;
  });
  const Ints ended = ended_by_muster(exits);
  auto doubt = cat("not certain: ",
                   rank_list(others),
                   " ended ",
                   alike ? "alike " : "",
                   "in the same moment, and said no more");
  if (!ended.empty())
    doubt += cat("; or they lost ", rank_list(ended), ", which muster ended then");
  return doubt;
}

}  // namespace muster
