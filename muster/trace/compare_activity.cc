// How it works: the collectives of each group have sequence numbers, so that the calls of all ranks
// can be put side by side. At each number the call that most ranks made is the common one, and
// whoever made another, or none, has left the common path. The first such number of a group counts.
#include "muster/trace/compare_activity.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"

namespace muster {

namespace {

// The calls of a rank in a group, by sequence number.
struct RankPath {
  const ActivityView* view = nullptr;
  std::map<int64_t, const CallView*> calls;
};
using GroupPaths = std::vector<RankPath>;
using RankPaths = std::vector<const RankPath*>;

// A job that replaces ranks in place makes its groups anew, with the attempt in their names; what
// the survivors did before, nobody can be compared with.
constexpr std::string_view kOfAttempt = " of generation ";

int attempt_in(const std::string& group) {
  const size_t at = group.find(kOfAttempt);
  return at == npos ? 0 : std::atoi(group.c_str() + at + kOfAttempt.size());
}

int newest_attempt(const ActivityViews& views) {
  int newest = 0;
  for (const ActivityView& view : views)
    for (const CallView& call : view.calls)
      newest = std::max(newest, attempt_in(call.group));
  return newest;
}

// Messages between two ranks, and calls of earlier attempts, are left out.
std::map<std::string, RankPath> paths_of_rank(const ActivityView& view, int attempt) {
  std::map<std::string, RankPath> paths;
  for (const CallView& call : view.calls) {
    if (call.peer >= 0 || attempt_in(call.group) != attempt)
      continue;
    RankPath& path = paths[call.group];
    path.view = &view;
    path.calls[call.sequence] = &call;
  }
  return paths;
}

// All ranks are in the world, those too that have made no call there.
void add_silent_ranks(GroupPaths& world, const ActivityViews& views) {
  for (const ActivityView& view : views) {
    const bool is_there = contains(world, &view, &RankPath::view);
    if (!is_there)
      world.push_back({.view = &view, .calls = {}});
  }
}

std::map<std::string, GroupPaths> paths_by_group(const ActivityViews& views) {
  std::map<std::string, GroupPaths> groups;
  const int attempt = newest_attempt(views);
  for (const ActivityView& view : views) {
    for (auto& [group, path] : paths_of_rank(view, attempt))
      groups[group].push_back(std::move(path));
  }
  const auto world = groups.find(attempt == 0 ? "world" : cat("world", kOfAttempt, attempt));
  if (world != groups.end())
    add_silent_ranks(world->second, views);
  return groups;
}

// The part of a call that must be the same on all ranks. Rows of an all_to_all need not be as many,
// and bytes are of any length.
std::string common_text(const CallView& call) {
  const bool shapes_differ =
      call.operation.starts_with("all_to_all") || call.operation.ends_with("_bytes");
  return shapes_differ ? call.operation : cat(call.operation, " ", call.what);
}

// The main thread's spans; empty where it was in none.
std::string spans_seen(const ActivityView& view) {
  if (view.closed_ns)
    return "it had left its function";
  const ThreadView* const main = view.main();
  if (main == nullptr || main->spans.empty())
    return "";
  return cat("it was in ", main->span_names());
}

// "it was in tokenize; last all_reduce #40 f32[1000]": the last call before the one that it misses.
std::string where_seen(const ActivityView& view, int64_t sequence, const std::string& group) {
  const auto text = spans_seen(view);
  const auto is_before = [&](const CallView& call) {
    return call.group != group || call.sequence < sequence;
  };
  const auto last = std::find_if(view.calls.rbegin(), view.calls.rend(), is_before);
  if (last == view.calls.rend())
    return text;
  return cat(text, text.empty() ? "" : "; ", "last ", last->text());
}

// The file has the rank's last calls only.
bool is_cut(const ActivityView& view) {
  return view.num_calls > view.calls.size();
}

// The sequence numbers that all ranks' files reach back to, in order.
std::set<int64_t> comparable_sequences(const GroupPaths& paths) {
  std::set<int64_t> sequences;
  int64_t from = std::numeric_limits<int64_t>::min();
  for (const RankPath& path : paths) {
    for (const auto& [sequence, call] : path.calls)
      sequences.insert(sequence);
    if (!path.calls.empty() && is_cut(*path.view))
      from = std::max(from, path.calls.begin()->first);
  }
  sequences.erase(sequences.begin(), sequences.lower_bound(from));
  return sequences;
}

// The calls at one sequence number: who made which, and who made none.
struct Meeting {
  std::map<std::string, RankPaths> by_text;
  RankPaths absent;
};

Meeting meeting_at(const GroupPaths& paths, int64_t sequence) {
  Meeting meeting;
  for (const RankPath& path : paths) {
    const CallView* const call = find_or(path.calls, sequence);
    if (call == nullptr)
      meeting.absent.push_back(&path);
    else
      meeting.by_text[common_text(*call)].push_back(&path);
  }
  return meeting;
}

Ints ranks_of(const RankPaths& paths) {
  Ints ranks = mapped(paths, [&](const RankPath* const path) { return path->view->rank; });
  std::ranges::sort(ranks);
  return ranks;
}

// `left` are the ranks that left the common path, `others` those that made the common call.
Divergence divergence_of(Divergence::Kind kind,
                         const std::string& group,
                         int64_t sequence,
                         const RankPaths& left,
                         const RankPaths& others) {
  Divergence found{.kind = kind,
                   .group = group,
                   .sequence = sequence,
                   .ranks = ranks_of(left),
                   .others = ranks_of(others)};
  const CallView& call = *others.front()->calls.at(sequence);
  found.call = call.text();
  found.unix_ns = std::numeric_limits<int64_t>::max();
  for (const RankPath* const path : others)
    found.unix_ns =
        std::min(found.unix_ns,
                 time_sum(path->calls.at(sequence)->begin_ns, path->view->unix_minus_monotonic_ns));
  const auto first =
      std::ranges::min_element(left, {}, [](const RankPath* path) { return path->view->rank; });
  if (kind == Divergence::Kind::other_call)
    found.theirs = (*first)->calls.at(sequence)->text();
  if (kind == Divergence::Kind::never_began)
    found.where = where_seen(*(*first)->view, sequence, group);
  return found;
}

// The call that most made is the common one; among equally many, that of the lowest rank.
std::optional<Divergence> difference_at(const GroupPaths& paths,
                                        const std::string& group,
                                        int64_t sequence) {
  const Meeting meeting = meeting_at(paths, sequence);
  if (meeting.by_text.empty())
    return std::nullopt;
  const auto common = std::ranges::max_element(meeting.by_text, {}, [](const auto& entry) {
    return std::pair(entry.second.size(), -ranks_of(entry.second).front());
  });
  RankPaths others;
  for (const auto& [text, made] : meeting.by_text) {
    if (text != common->first)
      append_all(others, made);
  }
  if (!others.empty())
    return divergence_of(Divergence::Kind::other_call, group, sequence, others, common->second);
  if (!meeting.absent.empty())
    return divergence_of(
        Divergence::Kind::never_began, group, sequence, meeting.absent, common->second);
  RankPaths ended = common->second;
  const auto rest = std::ranges::stable_partition(ended, [sequence](const RankPath* path) {
    return path->calls.at(sequence)->state == CallState::ended;
  });
  const RankPaths not_ended(rest.begin(), rest.end());
  ended.erase(rest.begin(), rest.end());
  if (ended.empty() || not_ended.empty())
    return std::nullopt;
  return divergence_of(Divergence::Kind::never_ended, group, sequence, not_ended, ended);
}

std::string numbers_text(const Ints& ranks) {
  constexpr size_t kMostShown = 8;
  Strings names = mapped(ranks, [&](const int rank) { return cat(rank); });
  return join_first(std::move(names), ", ", kMostShown);
}

// A rank whose file has none of the group's calls, and does not reach back to its first call, may
// have made any.
GroupPaths known_paths(GroupPaths paths) {
  std::erase_if(paths,
                [](const RankPath& path) { return path.calls.empty() && is_cut(*path.view); });
  return paths;
}

// Asynchronous calls end in any order: one that has not ended is of interest only where nothing
// else is found.
std::optional<Divergence> first_difference(const GroupPaths& all_paths, const std::string& group) {
  const GroupPaths paths = known_paths(all_paths);
  if (paths.size() < 2)
    return std::nullopt;
  std::optional<Divergence> unfinished;
  for (const int64_t sequence : comparable_sequences(paths)) {
    auto found = difference_at(paths, group, sequence);
    if (!found)
      continue;
    if (found->kind != Divergence::Kind::never_ended)
      return found;
    if (!unfinished)
      unfinished = std::move(found);
  }
  return unfinished;
}

}  // namespace

std::string Divergence::text() const {
  const auto who = cat(ranks.size() == 1 ? "rank " : "ranks ", numbers_text(ranks));
  const char* const pronoun = ranks.size() == 1 ? "it" : "they";
  const auto which = cat(call, " of ", group);
  const auto they = numbers_text(others);
  switch (kind) {
    case Kind::never_began:
      return cat(who,
                 " left the common path first: ",
                 pronoun,
                 " never began ",
                 which,
                 ", which rank(s) ",
                 they,
                 " began",
                 where.empty() ? "" : cat("; ", where));
    case Kind::other_call:
      return cat(who,
                 " left the common path first: ",
                 pronoun,
                 " called ",
                 theirs,
                 " where rank(s) ",
                 they,
                 " called ",
                 which);
    case Kind::never_ended:
      return cat(who, " never ended ", which, ", which rank(s) ", they, " ended");
  }
  return "";
}

std::vector<Divergence> compare_activity(const ActivityViews& views) {
  std::vector<Divergence> found = mapped_some(paths_by_group(views), [](const auto& group) {
    return first_difference(group.second, group.first);
  });
  // Calls that never ended come last.
  std::ranges::stable_sort(found, {}, [](const Divergence& one) {
    return std::pair(one.kind == Divergence::Kind::never_ended, one.unix_ns);
  });
  return found;
}

std::vector<Divergence> compare_activity(const std::string& run_dir, std::optional<int> attempt) {
  return compare_activity(readable_activity(run_dir, attempt));
}

}  // namespace muster
