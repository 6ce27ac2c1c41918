// Two sections from the ranks' activity files: where each rank's time went, as a bar of categories,
// and the ranks' last collectives, as bars on one clock. The ranks' clocks are compared by the
// difference to the time of day that each file holds.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/draw/xml_text.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"
#include "muster/report/number_text.h"
#include "muster/report/rank_work.h"
#include "muster/trace/breakdown.h"

namespace muster {
namespace {

constexpr size_t kMostRanksDrawn = 64;
constexpr size_t kMostRanksOnTracks = 32;
constexpr size_t kCallsOnTrack = 40;
constexpr size_t kMostKinds = 12;

// A category's name for people, and its fill.
struct CategoryLook {
  Category category;
  const char* words;
  const char* fill;
};

constexpr std::array<CategoryLook, kActivityCategories> kCategories = {
    {{Category::compute, "compute", "f1"},
     {Category::communication, "exposed communication", "f2"},
     {Category::data, "data wait", "f3"},
     {Category::checkpoint, "checkpoint", "f4"},
     {Category::other, "other", "f5"}}};

// Returns until when the file tells what the rank did: now, or the last that is known of it.
int64_t until_ns(const JobRun& run, const ActivityView& view) {
  const int64_t last = view.last_sign_ns();
  const bool is_running = run.goes_on && !view.closed_ns;
  return is_running ? std::max(run.now_ns, last) : last;
}

// The legend stands above the bars, with the words that the parts have too.
std::string category_legend() {
  std::string html = "<ul class=\"legend\">\n";
  html += sum_of<std::string>(kCategories, [&](const CategoryLook& look) {
    return cat("<li><span class=\"key ", look.fill, "\"></span>", look.words, "</li>\n");
  });
  return html + "</ul>\n";
}

// A clock that was set back can make a share negative, which is shown as 0.
std::string share_text(double share) {
  return cat(std::max(0L, std::lround(share * 100)), " %");
}

// A rank's bar, divided by categories. Each part says what it is under the pointer, and all of them
// to a screen reader.
std::string rank_bar(const ActivityView& view, const TimeShares& shares) {
  std::string parts;
  Strings told;
  for (const CategoryLook& look : kCategories) {
    const double seconds = shares.of(look.category);
    if (seconds <= 0)
      continue;
    const auto words =
        cat(look.words, " ", share_text(seconds / shares.total), ", ", duration_text(seconds));
    parts += cat("<span class=\"",
                 look.fill,
                 "\" style=\"width:",
                 percent(seconds / shares.total),
                 "\" title=\"",
                 xml_text(words),
                 "\"></span>");
    told.push_back(words);
  }
  return cat("<span class=\"name\">rank ",
             view.rank,
             "</span><div class=\"bar\" role=\"img\" aria-label=\"",
             xml_text(join(told, "; ")),
             "\">",
             parts,
             "</div>\n");
}

// The table has the bars' shares as numbers, with the speed of each rank and what it is in.
std::string ranks_numbers(const JobRun& run) {
  TableRows rows;
  for (const ActivityView& view : run.ranks) {
    const TimeShares shares = time_shares(view, until_ns(run, view));
    const auto step = seconds_per_step(view);
    const auto speed = samples_per_second(view);
    Strings row = {cat(view.rank),
                   view.host,
                   view.device,
                   number_text(view.step),
                   step ? duration_text(*step) : "",
                   speed ? number_text(*speed) : ""};
    for (const CategoryLook& look : kCategories) {
      const double seconds = shares.of(look.category);
      row.push_back(shares.total > 0 ? share_text(seconds / shares.total) : "");
    }
    row.push_back(view.closed_ns ? "" : doing_text(view));
    rows.push_back(std::move(row));
  }
  TableColumns columns = {
      {"rank", true}, {"host"}, {"device"}, {"step", true}, {"a step", true}, {"samples/s", true}};
  for (const CategoryLook& look : kCategories)
    columns.push_back({look.words, true});
  columns.push_back({run.goes_on ? "is in" : "was in at its end"});
  return html_table(columns, rows);
}

// A call on the clock of all ranks. Units: seconds since 1970.
struct CallBar {
  const CallView* call = nullptr;
  double begin = 0;
  double end = 0;
};

struct RankTrack {
  const ActivityView* view = nullptr;
  std::vector<CallBar> bars{};
};

// The sum is made of doubles, for a file may hold any numbers.
double unix_seconds(const ActivityView& view, int64_t monotonic_ns) {
  return (static_cast<double>(monotonic_ns) + static_cast<double>(view.unix_minus_monotonic_ns)) /
         1e9;
}

// A call that has not ended is drawn until its rank's last sign of life.
std::vector<RankTrack> tracks_of(const JobRun& run) {
  std::vector<RankTrack> tracks;
  for (const ActivityView& view : run.ranks) {
    if (view.calls.empty() || tracks.size() == kMostRanksOnTracks)
      continue;
    RankTrack track{.view = &view};
    const auto last = std::span(view.calls).last(std::min(view.calls.size(), kCallsOnTrack));
    for (const CallView& call : last) {
      track.bars.push_back({&call,
                            unix_seconds(view, call.begin_ns),
                            unix_seconds(view, call.end_ns.value_or(until_ns(run, view)))});
    }
    tracks.push_back(std::move(track));
  }
  return tracks;
}

// The fills of operations. The ones that are called most often have their own, and the others share
// the last.
class OperationLooks {
 public:
  explicit OperationLooks(const std::vector<RankTrack>& tracks) {
    std::map<std::string, size_t> counts;
    for (const RankTrack& track : tracks) {
      for (const CallBar& bar : track.bars)
        ++counts[bar.call->operation];
    }
    for (const auto& [name, count] : counts)
      names_.push_back(name);
    std::ranges::stable_sort(
        names_, std::greater(), [&](const std::string& name) { return counts[name]; });
    names_.resize(std::min(names_.size(), kLooks));
  }

  std::string of(const std::string& operation) const {
    return cat("f", index_with(names_, operation).value_or(kLooks) + 1);
  }

  std::string legend() const {
    std::string html = "<ul class=\"legend\">\n";
    for (const size_t i : indices_of(names_))
      html += cat("<li><span class=\"key f", i + 1, "\"></span>", xml_text(names_[i]), "</li>\n");
    return html + "<li><span class=\"key failed\"></span>failed, or never ended</li>\n</ul>\n";
  }

 private:
  static constexpr size_t kLooks = 4;
  Strings names_;
};

constexpr std::pair<CallState, const char*> kWordsOfEnds[] = {
    {CallState::failed, ", failed after "}, {CallState::under_way, ", not ended after "}};

std::string bar_title(const CallBar& bar) {
  const CallView& call = *bar.call;
  std::string text = call.text();
  if (!call.group.empty())
    text += cat(" of ", call.group);
  if (call.bytes > 0)
    text += cat(", ", format_bytes(call.bytes));
  return cat(text, lookup(kWordsOfEnds, call.state, ", "), duration_text(bar.end - bar.begin));
}

// A rank's row: a bar for each call, on a track that is `length` seconds long from `begin`.
std::string track_row(const RankTrack& track,
                      const OperationLooks& looks,
                      bool goes_on,
                      double begin,
                      double length) {
  auto html =
      cat("<span class=\"name\">rank ", track.view->rank, "</span><div class=\"track calls\">");
  for (const CallBar& bar : track.bars) {
    const bool is_running = goes_on && bar.call->state == CallState::under_way;
    const bool is_good = is_running || bar.call->state == CallState::ended;
    html += cat("<span class=\"",
                is_good ? looks.of(bar.call->operation) : "failed",
                "\" style=\"left:",
                percent((bar.begin - begin) / length),
                ";width:",
                percent(std::max(0.0, bar.end - bar.begin) / length),
                "\" title=\"",
                xml_text(bar_title(bar)),
                "\"></span>");
  }
  return html + "</div>\n";
}

// All tracks have one scale, from the first call's begin to the last one's end.
std::string collectives_tracks(const JobRun& run) {
  const auto tracks = tracks_of(run);
  if (tracks.empty())
    return {};
  double begin = HUGE_VAL;
  double end = -HUGE_VAL;
  for (const RankTrack& track : tracks) {
    begin = std::min(begin, track.bars.front().begin);
    for (const CallBar& bar : track.bars)
      end = std::max(end, bar.end);
  }
  const double length = std::max(end - begin, 1e-6);
  const OperationLooks looks(tracks);
  std::string html = looks.legend() + "<div class=\"rows\">\n";
  html += sum_of<std::string>(tracks, [&](const RankTrack& track) {
    return track_row(track, looks, run.goes_on, begin, length);
  });
  return html + html_scale(length) + "</div>\n";
}

// The calls of all ranks with one operation, type and shape. Times in seconds.
struct KindOfCall {
  std::string text{};
  size_t count = 0;
  size_t not_ended = 0;
  double total = 0;
  double most = 0;
  int64_t bytes = 0;

  void add(const CallView& call) {
    ++count;
    bytes = call.bytes;
    if (!call.end_ns) {
      ++not_ended;
      return;
    }
    const double seconds = seconds_between(call.begin_ns, *call.end_ns);
    total += seconds;
    most = std::max(most, seconds);
  }

  Strings row() const {
    Strings cells = {text, cat(count), bytes > 0 ? format_bytes(bytes) : "", "", ""};
    if (count > not_ended) {
      cells[3] = duration_text(total / static_cast<double>(count - not_ended));
      cells[4] = duration_text(most);
    }
    cells.push_back(text_of_count(not_ended));
    return cells;
  }
};

// Returns the kinds of calls, those that took the most time in all first.
std::vector<KindOfCall> kinds_of_calls(const JobRun& run) {
  std::map<std::string, KindOfCall> kinds;
  for (const ActivityView& view : run.ranks) {
    for (const CallView& call : view.calls) {
      const std::string text =
          call.what.empty() ? call.operation : cat(call.operation, " ", call.what);
      KindOfCall& kind = kinds[text];
      kind.text = text;
      kind.add(call);
    }
  }
  const auto all = std::views::values(kinds);
  std::vector<KindOfCall> sorted(all.begin(), all.end());
  std::ranges::stable_sort(sorted, std::greater(), &KindOfCall::total);
  return sorted;
}

// A call's size is that of its last occurrence: its type and shape fix it.
std::string kinds_table(const JobRun& run) {
  const auto rows = mapped(kinds_of_calls(run), &KindOfCall::row);
  return html_table({{"call"},
                     {"times", true},
                     {"size", true},
                     {"on average", true},
                     {"longest", true},
                     {"not ended", true}},
                    rows,
                    kMostKinds);
}

// Says which rank keeps the others waiting, and by what, in the launcher's own words.
std::string straggler_text(const JobRun& run) {
  const auto now = run.goes_on ? std::optional(run.now_ns) : std::nullopt;
  const auto breakdown = breakdown_of(run.ranks, now);
  if (!breakdown || !breakdown->straggler)
    return {};
  return cat("<p>", xml_text(with_capital(breakdown->lines().back())), ".</p>\n");
}

}  // namespace

// Large jobs have bars for their first ranks alone; the table has all ranks.
std::string time_section(const JobRun& run) {
  if (run.ranks.empty())
    return {};
  std::string bars;
  for (size_t i = 0; i < std::min(run.ranks.size(), kMostRanksDrawn); ++i) {
    const TimeShares shares = time_shares(run.ranks[i], until_ns(run, run.ranks[i]));
    if (shares.total > 0)
      bars += rank_bar(run.ranks[i], shares);
  }
  if (bars.empty())
    return {};
  const std::string more = run.ranks.size() > kMostRanksDrawn
                               ? cat("<p class=\"soft small\">",
                                     run.ranks.size() - kMostRanksDrawn,
                                     " more ranks are in the table.</p>\n")
                               : "";
  return html_section("time",
                      "Where the time goes",
                      cat(straggler_text(run),
                          category_legend(),
                          "<div class=\"rows\">\n",
                          bars,
                          "</div>\n",
                          more,
                          ranks_numbers(run)),
                      cat("Each rank's main thread in the last attempt, from its start",
                          run.goes_on ? " until now." : " to its end."));
}

// Ranks that wrote no activity file, or made no call, have no track.
std::string collectives_section(const JobRun& run) {
  const auto tracks = collectives_tracks(run);
  if (tracks.empty())
    return {};
  return html_section("collectives",
                      "Last collectives and messages",
                      cat(tracks,
                          "<details><summary>How long each kind takes</summary>\n",
                          kinds_table(run),
                          "</details>\n"),
                      cat("The last ",
                          kCallsOnTrack,
                          " of each rank, on one clock. Where one rank's bars begin late, the "
                          "others wait for it."));
}

}  // namespace muster
