// Where each rank's time went, and its last collectives on one clock: from the ranks' activity
// files.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/draw/xml_text.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"
#include "muster/report/rank_work.h"
#include "muster/trace/breakdown.h"

namespace muster {
namespace {

constexpr size_t kMostRanksDrawn = 64;
constexpr size_t kMostRanksOnTracks = 32;
constexpr size_t kCallsOnTrack = 40;
constexpr size_t kMostKinds = 12;

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

int64_t until_ns(const JobRun& run, const ActivityView& view) {
  const int64_t last = view.last_sign_ns();
  return run.goes_on && !view.closed_ns ? std::max(run.now_ns, last) : last;
}

std::string category_legend() {
  std::string html = "<ul class=\"legend\">\n";
  for (const CategoryLook& look : kCategories)
    html += cat("<li><span class=\"key ", look.fill, "\"></span>", look.words, "</li>\n");
  return html + "</ul>\n";
}

std::string share_text(double share) {
  return cat(std::max(0L, std::lround(share * 100)), " %");
}

std::string rank_bar(const ActivityView& view, const TimeShares& shares) {
  std::string parts;
  std::vector<std::string> told;
  for (const CategoryLook& look : kCategories) {
    const double seconds = shares.seconds.at(static_cast<size_t>(look.category));
    if (seconds <= 0)
      continue;
    const std::string words =
        cat(look.words, " ", share_text(seconds / shares.total), ", ", span_text(seconds));
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

std::string speed_text(const ActivityView& view) {
  const auto speed = samples_per_second(view);
  return speed ? number_text(*speed) : "";
}

std::string ranks_numbers(const JobRun& run) {
  std::vector<std::vector<std::string>> rows;
  for (const ActivityView& view : run.ranks) {
    const TimeShares shares = time_shares(view, until_ns(run, view));
    const auto step = seconds_per_step(view);
    std::vector<std::string> row = {cat(view.rank),
                                    view.host,
                                    view.device,
                                    number_text(static_cast<double>(view.step)),
                                    step ? span_text(*step) : "",
                                    speed_text(view)};
    for (const CategoryLook& look : kCategories) {
      const double seconds = shares.seconds.at(static_cast<size_t>(look.category));
      row.push_back(shares.total > 0 ? share_text(seconds / shares.total) : "");
    }
    row.push_back(view.closed_ns ? "" : doing_text(view));
    rows.push_back(std::move(row));
  }
  std::vector<HtmlColumn> columns = {
      {"rank", true}, {"host"}, {"device"}, {"step", true}, {"a step", true}, {"samples/s", true}};
  for (const CategoryLook& look : kCategories)
    columns.push_back({look.words, true});
  columns.push_back({run.goes_on ? "is in" : "was in at its end"});
  return html_table(columns, rows);
}

// Calls of all ranks on one clock. Units: seconds since 1970.
struct CallBar {
  const CallView* call = nullptr;
  double begin = 0;
  double end = 0;
};

struct RankTrack {
  const ActivityView* view = nullptr;
  std::vector<CallBar> bars = {};
};

double unix_seconds(const ActivityView& view, int64_t monotonic_ns) {
  return (static_cast<double>(monotonic_ns) + static_cast<double>(view.unix_minus_monotonic_ns)) /
         1e9;
}

std::vector<RankTrack> tracks_of(const JobRun& run) {
  std::vector<RankTrack> tracks;
  for (const ActivityView& view : run.ranks) {
    if (view.calls.empty() || tracks.size() == kMostRanksOnTracks)
      continue;
    RankTrack track{.view = &view};
    const size_t first = view.calls.size() > kCallsOnTrack ? view.calls.size() - kCallsOnTrack : 0;
    for (size_t i = first; i < view.calls.size(); ++i) {
      const CallView& call = view.calls[i];
      track.bars.push_back({&call,
                            unix_seconds(view, call.begin_ns),
                            unix_seconds(view, call.end_ns.value_or(until_ns(run, view)))});
    }
    tracks.push_back(std::move(track));
  }
  return tracks;
}

// The looks of the operations that are called most often; of the others, the last.
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
    std::stable_sort(names_.begin(), names_.end(), [&](const std::string& a, const std::string& b) {
      return counts[a] > counts[b];
    });
    if (names_.size() > kLooks)
      names_.resize(kLooks);
  }

  std::string of(const std::string& operation) const {
    const auto found = std::find(names_.begin(), names_.end(), operation);
    return cat(
        "f", found == names_.end() ? kLooks + 1 : static_cast<size_t>(found - names_.begin()) + 1);
  }

  std::string legend() const {
    std::string html = "<ul class=\"legend\">\n";
    for (size_t i = 0; i < names_.size(); ++i)
      html += cat("<li><span class=\"key f", i + 1, "\"></span>", xml_text(names_[i]), "</li>\n");
    return html + "<li><span class=\"key failed\"></span>failed, or never ended</li>\n</ul>\n";
  }

 private:
  static constexpr size_t kLooks = 4;
  std::vector<std::string> names_ = {};
};

std::string bar_title(const CallBar& bar) {
  const CallView& call = *bar.call;
  std::string text = call.text();
  if (!call.group.empty())
    text += cat(" of ", call.group);
  if (call.bytes > 0)
    text += cat(", ", format_bytes(static_cast<uint64_t>(call.bytes)));
  const char* const end = call.state == CallView::State::failed      ? ", failed after "
                          : call.state == CallView::State::under_way ? ", not ended after "
                                                                     : ", ";
  return cat(text, end, span_text(bar.end - bar.begin));
}

std::string collectives_tracks(const JobRun& run) {
  const std::vector<RankTrack> tracks = tracks_of(run);
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
  for (const RankTrack& track : tracks) {
    html +=
        cat("<span class=\"name\">rank ", track.view->rank, "</span><div class=\"track calls\">");
    for (const CallBar& bar : track.bars) {
      const bool good = bar.call->state == CallView::State::ended ||
                        (run.goes_on && bar.call->state == CallView::State::under_way);
      html += cat("<span class=\"",
                  good ? looks.of(bar.call->operation) : "failed",
                  "\" style=\"left:",
                  percent((bar.begin - begin) / length),
                  ";width:",
                  percent(std::max(0.0, bar.end - bar.begin) / length),
                  "\" title=\"",
                  xml_text(bar_title(bar)),
                  "\"></span>");
    }
    html += "</div>\n";
  }
  html += "<span></span><div class=\"scale\">";
  for (const double tick : ticks_of(0, length, 4)) {
    if (tick <= length * 0.86)
      html += cat("<span style=\"left:",
                  percent(tick / length),
                  "\">",
                  tick == 0 ? "0" : span_text(tick),
                  "</span>");
  }
  return html + "</div>\n</div>\n";
}

struct KindOfCall {
  std::string text = {};
  size_t count = 0;
  size_t not_ended = 0;
  double total = 0;
  double most = 0;
  double bytes = 0;
};

std::string kinds_table(const JobRun& run) {
  std::map<std::string, KindOfCall> kinds;
  for (const ActivityView& view : run.ranks) {
    for (const CallView& call : view.calls) {
      const std::string text =
          call.what.empty() ? call.operation : cat(call.operation, " ", call.what);
      KindOfCall& kind = kinds[text];
      kind.text = text;
      ++kind.count;
      kind.bytes = static_cast<double>(call.bytes);
      if (!call.end_ns) {
        ++kind.not_ended;
        continue;
      }
      const double seconds = static_cast<double>(*call.end_ns - call.begin_ns) / 1e9;
      kind.total += seconds;
      kind.most = std::max(kind.most, seconds);
    }
  }
  std::vector<KindOfCall> sorted;
  sorted.reserve(kinds.size());
  for (auto& [text, kind] : kinds)
    sorted.push_back(std::move(kind));
  std::stable_sort(sorted.begin(), sorted.end(), [](const KindOfCall& a, const KindOfCall& b) {
    return a.total > b.total;
  });
  std::vector<std::vector<std::string>> rows;
  for (const KindOfCall& kind : sorted) {
    const size_t ended = kind.count - kind.not_ended;
    rows.push_back({kind.text,
                    cat(kind.count),
                    kind.bytes > 0 ? format_bytes(static_cast<uint64_t>(kind.bytes)) : "",
                    ended > 0 ? span_text(kind.total / static_cast<double>(ended)) : "",
                    ended > 0 ? span_text(kind.most) : "",
                    kind.not_ended > 0 ? cat(kind.not_ended) : ""});
  }
  return html_table({{"call"},
                     {"times", true},
                     {"size", true},
                     {"on average", true},
                     {"longest", true},
                     {"not ended", true}},
                    rows,
                    kMostKinds);
}

// Who keeps the others waiting, and by what, in the launcher's own words.
std::string straggler_text(const JobRun& run) {
  const auto breakdown =
      breakdown_of(run.ranks, run.goes_on ? std::optional(run.now_ns) : std::nullopt);
  if (!breakdown || !breakdown->straggler)
    return {};
  std::string sentence = breakdown->lines().back();
  sentence[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(sentence[0])));
  return cat("<p>", xml_text(sentence), ".</p>\n");
}

}  // namespace

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

std::string collectives_section(const JobRun& run) {
  const std::string tracks = collectives_tracks(run);
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
