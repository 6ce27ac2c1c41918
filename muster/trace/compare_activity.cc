#include "muster/trace/compare_activity.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_clock.h"

namespace muster {

namespace {

// What a rank did in a group, by sequence number.
struct RankPath {
  const ActivityView* view = nullptr;
  std::map<int64_t, const CallView*> calls;
};
using GroupPaths = std::vector<RankPath>;

// A job that replaces ranks in place makes its groups anew, with the generation in their names;
// what the survivors did before, nobody can be compared with.
constexpr std::string_view kOfGeneration = " of generation ";

int generation_of(const std::string& group) {
  const size_t at = group.find(kOfGeneration);
  return at == std::string::npos ? 0 : std::atoi(group.c_str() + at + kOfGeneration.size());
}

int newest_generation(const std::vector<ActivityView>& views) {
  int newest = 0;
  for (const ActivityView& view : views)
    for (const CallView& call : view.calls)
      newest = std::max(newest, generation_of(call.group));
  return newest;
}

std::map<std::string, GroupPaths> paths_by_group(const std::vector<ActivityView>& views) {
  std::map<std::string, GroupPaths> groups;
  const int generation = newest_generation(views);
  for (const ActivityView& view : views) {
    std::map<std::string, RankPath> own;
    for (const CallView& call : view.calls) {
      if (call.peer >= 0 || generation_of(call.group) != generation)
        continue;
      RankPath& path = own[call.group];
      path.view = &view;
      path.calls[call.sequence] = &call;
    }
    for (auto& [group, path] : own)
      groups[group].push_back(std::move(path));
  }
  // All ranks are in the world, those too that have made no call there.
  const auto world =
      groups.find(generation == 0 ? "world" : cat("world", kOfGeneration, generation));
  if (world == groups.end())
    return groups;
  for (const ActivityView& view : views) {
    const bool is_there = std::any_of(world->second.begin(),
                                      world->second.end(),
                                      [&](const RankPath& path) { return path.view == &view; });
    if (!is_there)
      world->second.push_back({.view = &view, .calls = {}});
  }
  return groups;
}

// What must be the same on all ranks. Rows of an all_to_all need not be as many, and bytes are of
// any length.
std::string common_text(const CallView& call) {
  const bool shapes_differ =
      call.operation.starts_with("all_to_all") || call.operation.ends_with("_bytes");
  return shapes_differ ? call.operation : cat(call.operation, " ", call.what);
}

std::string where_seen(const ActivityView& view, int64_t sequence, const std::string& group) {
  std::vector<std::string> names;
  if (const ThreadView* const main = view.main()) {
    for (const SpanView& span : main->spans)
      names.push_back(span.name);
  }
  std::string text = view.closed_ns  ? "it had left its function"
                     : names.empty() ? std::string()
                                     : cat("it was in ", join(names, " > "));
  const auto is_before = [&](const CallView& call) {
    return call.group != group || call.sequence < sequence;
  };
  const auto last = std::find_if(view.calls.rbegin(), view.calls.rend(), is_before);
  if (last == view.calls.rend())
    return text;
  return cat(text, text.empty() ? "" : "; ", "last ", last->text());
}

// Where all ranks' files reach back to, up to the last that any has begun.
std::pair<int64_t, int64_t> range_of(const GroupPaths& paths) {
  int64_t from = std::numeric_limits<int64_t>::min(), to = std::numeric_limits<int64_t>::min();
  for (const RankPath& path : paths) {
    if (path.calls.empty())
      continue;
    const bool is_cut = path.view->num_calls > path.view->calls.size();
    if (is_cut)
      from = std::max(from, path.calls.begin()->first);
    to = std::max(to, path.calls.rbegin()->first);
  }
  return {from, to};
}

// The calls at one sequence number: who made which, and who made none.
struct Meeting {
  std::map<std::string, std::vector<const RankPath*>> by_text;
  std::vector<const RankPath*> absent;
};

Meeting meeting_at(const GroupPaths& paths, int64_t sequence) {
  Meeting meeting;
  for (const RankPath& path : paths) {
    const auto found = path.calls.find(sequence);
    if (found == path.calls.end()) {
      meeting.absent.push_back(&path);
    } else {
      meeting.by_text[common_text(*found->second)].push_back(&path);
    }
  }
  return meeting;
}

std::vector<int> ranks_of(const std::vector<const RankPath*>& paths) {
  std::vector<int> ranks;
  for (const RankPath* const path : paths)
    ranks.push_back(path->view->rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Divergence divergence_of(Divergence::Kind kind,
                         const std::string& group,
                         int64_t sequence,
                         const std::vector<const RankPath*>& left,
                         const std::vector<const RankPath*>& others) {
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
      std::min_element(left.begin(), left.end(), [](const RankPath* one, const RankPath* other) {
        return one->view->rank < other->view->rank;
      });
  if (kind == Divergence::Kind::other_call)
    found.theirs = (*first)->calls.at(sequence)->text();
  if (kind == Divergence::Kind::never_began)
    found.where = where_seen(*(*first)->view, sequence, group);
  return found;
}

// The call that most made is the common one; of equally many, that of the lowest rank.
std::optional<Divergence> difference_at(const GroupPaths& paths,
                                        const std::string& group,
                                        int64_t sequence) {
  const Meeting meeting = meeting_at(paths, sequence);
  if (meeting.by_text.empty())
    return std::nullopt;
  const auto common = std::max_element(
      meeting.by_text.begin(), meeting.by_text.end(), [](const auto& one, const auto& other) {
        const auto weight = [](const auto& entry) {
          return std::pair(entry.second.size(), -ranks_of(entry.second).front());
        };
        return weight(one) < weight(other);
      });
  std::vector<const RankPath*> others;
  for (const auto& [text, made] : meeting.by_text) {
    if (text != common->first)
      others.insert(others.end(), made.begin(), made.end());
  }
  if (!others.empty())
    return divergence_of(Divergence::Kind::other_call, group, sequence, others, common->second);
  if (!meeting.absent.empty())
    return divergence_of(
        Divergence::Kind::never_began, group, sequence, meeting.absent, common->second);
  std::vector<const RankPath*> ended, not_ended;
  for (const RankPath* const path : common->second)
    (path->calls.at(sequence)->state == CallView::State::ended ? ended : not_ended).push_back(path);
  if (ended.empty() || not_ended.empty())
    return std::nullopt;
  return divergence_of(Divergence::Kind::never_ended, group, sequence, not_ended, ended);
}

std::string numbers_text(const std::vector<int>& ranks) {
  constexpr size_t kMostShown = 8;
  std::vector<std::string> names;
  for (const int rank : ranks)
    names.push_back(cat(rank));
  return join_first(std::move(names), ", ", kMostShown);
}

// A rank whose file has none of the group's calls, and does not reach back to its first call, may
// have made any.
GroupPaths known_paths(GroupPaths paths) {
  std::erase_if(paths, [](const RankPath& path) {
    return path.calls.empty() && path.view->num_calls > path.view->calls.size();
  });
  return paths;
}

// Asynchronous calls end in any order: that one has not is of interest where nothing else is found.
std::optional<Divergence> first_difference(const GroupPaths& all_paths, const std::string& group) {
  const GroupPaths paths = known_paths(all_paths);
  if (paths.size() < 2)
    return std::nullopt;
  const auto [from, to] = range_of(paths);
  std::optional<Divergence> unfinished;
  std::map<int64_t, bool> sequences;
  for (const RankPath& path : paths) {
    for (const auto& [sequence, call] : path.calls)
      sequences[sequence] = true;
  }
  for (const auto& [sequence, there] : sequences) {
    if (sequence < from || sequence > to)
      continue;
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
  const std::string who = cat(ranks.size() == 1 ? "rank " : "ranks ", numbers_text(ranks));
  const char* const pronoun = ranks.size() == 1 ? "it" : "they";
  const std::string which = cat(call, " of ", group);
  const std::string they = numbers_text(others);
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

std::vector<Divergence> compare_activity(const std::vector<ActivityView>& views) {
  std::vector<Divergence> found;
  for (const auto& [group, paths] : paths_by_group(views)) {
    if (auto difference = first_difference(paths, group))
      found.push_back(std::move(*difference));
  }
  std::stable_sort(found.begin(), found.end(), [](const Divergence& one, const Divergence& other) {
    const bool one_ended = one.kind == Divergence::Kind::never_ended;
    const bool other_ended = other.kind == Divergence::Kind::never_ended;
    return one_ended != other_ended ? other_ended : one.unix_ns < other.unix_ns;
  });
  return found;
}

std::vector<Divergence> compare_activity(const std::string& run_dir, std::optional<int> attempt) {
  std::vector<ActivityView> views;
  for (const ActivityFile& file : activity_files(run_dir, attempt)) {
    try {
      views.push_back(read_activity(file.path));
    } catch (const Error&) {
      continue;
    }
  }
  return compare_activity(views);
}

}  // namespace muster
