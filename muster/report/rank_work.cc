// An activity file is a moment of a rank: its times are of its host's monotonic clock, and all that
// is derived here is a difference of two of them.
#include "muster/report/rank_work.h"

#include <algorithm>
#include <exception>

#include "muster/base/indices_of.h"
#include "muster/base/json_words.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

bool is_under_way(const CallView& call) {
  return call.state == CallState::under_way;
}

// Returns the last call that has not ended; nullptr if all have.
const CallView* call_under_way(const ActivityView& view) {
  const auto found = std::find_if(view.calls.rbegin(), view.calls.rend(), is_under_way);
  return found == view.calls.rend() ? nullptr : &*found;
}

}  // namespace

double seconds_between(int64_t begin_ns, int64_t end_ns) {
  return static_cast<double>(std::max<int64_t>(0, end_ns - begin_ns)) / 1e9;
}

TimeShares time_shares(const ActivityView& view, int64_t now_ns) {
  TimeShares shares;
  const auto totals = view.totals_at(now_ns);
  for (const size_t i : indices_of(totals)) {
    shares.seconds.at(i) = seconds_between(0, totals.at(i));
    shares.total += shares.seconds.at(i);
  }
  return shares;
}

// The time before the first step, in which a program loads and compiles, is counted too.
std::optional<double> seconds_per_step(const ActivityView& view) {
  if (view.steps < 1 || view.step_ns <= view.opened_ns)
    return std::nullopt;
  return seconds_between(view.opened_ns, view.step_ns) / static_cast<double>(view.steps);
}

std::optional<double> samples_per_second(const ActivityView& view) {
  if (view.samples < 1 || view.step_ns <= view.opened_ns)
    return std::nullopt;
  return static_cast<double>(view.samples) / seconds_between(view.opened_ns, view.step_ns);
}

// Spans deeper than an activity file can hold are "…".
std::string doing_text(const ActivityView& view) {
  Strings names;
  if (const ThreadView* const main = view.main()) {
    names = mapped(main->spans, &SpanView::name);
    if (main->deeper > 0)
      names.push_back("…");
  }
  if (const CallView* const call = call_under_way(view)) {
    // A call may have a span of its own, which says less.
    if (!names.empty() && call->text().starts_with(names.back()))
      names.pop_back();
    names.push_back(call->text());
  }
  return join(names, " > ");
}

int64_t doing_since_ns(const ActivityView& view) {
  if (const CallView* const call = call_under_way(view))
    return call->begin_ns;
  const ThreadView* const main = view.main();
  if (main == nullptr || main->spans.empty())
    return view.category_since_ns;
  return main->spans.back().begin_ns;
}

const CallView* last_ended_call(const ActivityView& view) {
  const auto ended = std::find_if_not(view.calls.rbegin(), view.calls.rend(), is_under_way);
  if (ended != view.calls.rend())
    return &*ended;
  return view.calls.empty() ? nullptr : &view.calls.back();
}

ActivityViews read_ranks(const std::string& folder, Strings& problems) {
  ActivityViews ranks;
  for (const ActivityFile& file : activity_files(folder)) {
    try {
      ranks.push_back(read_activity(file.path));
      // A rank that went on in place has the file of its first attempt.
      ranks.back().attempt = file.attempt;
    } catch (const std::exception& problem) {
      problems.push_back(cat("rank ", file.rank, ": ", printable(json_words(problem.what()))));
    }
  }
  return ranks;
}

}  // namespace muster
