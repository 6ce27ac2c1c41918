#include "muster/report/rank_work.h"

#include <algorithm>

#include "muster/base/strings.h"

namespace muster {
namespace {

double seconds_of(int64_t nanoseconds) {
  return static_cast<double>(std::max<int64_t>(0, nanoseconds)) / 1e9;
}

const CallView* call_under_way(const ActivityView& view) {
  const auto found = std::find_if(view.calls.rbegin(), view.calls.rend(), [](const CallView& call) {
    return call.state == CallView::State::under_way;
  });
  return found == view.calls.rend() ? nullptr : &*found;
}

}  // namespace

TimeShares time_shares(const ActivityView& view, int64_t now_ns) {
  TimeShares shares;
  const auto totals = view.totals_at(now_ns);
  for (size_t i = 0; i < totals.size(); ++i) {
    shares.seconds.at(i) = seconds_of(totals.at(i));
    shares.total += shares.seconds.at(i);
  }
  return shares;
}

std::optional<double> seconds_per_step(const ActivityView& view) {
  if (view.steps < 1 || view.step_ns <= view.opened_ns)
    return std::nullopt;
  return seconds_of(view.step_ns - view.opened_ns) / static_cast<double>(view.steps);
}

std::optional<double> samples_per_second(const ActivityView& view) {
  if (view.samples < 1 || view.step_ns <= view.opened_ns)
    return std::nullopt;
  return static_cast<double>(view.samples) / seconds_of(view.step_ns - view.opened_ns);
}

std::string doing_text(const ActivityView& view) {
  std::vector<std::string> names;
  if (const ThreadView* const main = view.main()) {
    for (const SpanView& span : main->spans)
      names.push_back(span.name);
    if (main->deeper > 0)
      names.push_back("…");
  }
  if (const CallView* const call = call_under_way(view)) {
    if (!names.empty() && call->text().starts_with(names.back()))
      names.pop_back();  // a span of the call itself
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
  const auto ended = std::find_if(view.calls.rbegin(), view.calls.rend(), [](const CallView& call) {
    return call.state != CallView::State::under_way;
  });
  if (ended != view.calls.rend())
    return &*ended;
  return view.calls.empty() ? nullptr : &view.calls.back();
}

std::vector<ActivityView> read_ranks(const std::string& folder,
                                     std::vector<std::string>& problems) {
  std::vector<ActivityView> ranks;
  for (const ActivityFile& file : activity_files(folder)) {
    try {
      ranks.push_back(read_activity(file.path));
      ranks.back().attempt =
          file.attempt;  // of a survivor of a replacement: its file is of its first one
    } catch (const std::exception& problem) {
      problems.push_back(cat("rank ", file.rank, ": ", printable(problem.what())));
    }
  }
  return ranks;
}

}  // namespace muster
