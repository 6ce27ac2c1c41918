// The table leaves out columns of which no rank has anything, so that ranks on CPUs have no columns
// for GPUs. Prometheus' text and the JSON have all values with all of their digits.
#include "muster/report/top_text.h"
#include "muster/base/json_member.h"
#include "muster/report/number_text.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/draw/text_table.h"
#include "muster/draw/xml_text.h"
#include "muster/report/top_rows.h"

namespace muster {
namespace {

constexpr size_t kMostTitle = 60;
constexpr size_t kMostDoing = 60;
constexpr size_t kMostCall = 44;

// The page's form without its narrow spaces, which terminals draw in many ways.
std::string number_of(double value) {
  constexpr std::string_view kNarrowSpace = "\u202f";
  std::string text = number_text(value);
  size_t at = 0;
  while ((at = text.find(kNarrowSpace, at)) != npos)
    text.erase(at, kNarrowSpace.size());
  return text;
}

std::string ago(double seconds) {
  if (seconds < 1)
    return "now";
  return duration_text(std::floor(seconds));
}

// A column of the table: an empty cell says that nothing is known.
struct TopColumn {
  TableColumn head;
  std::function<std::string(const TopRank&)> cell;
};

template <class Number, class Text>
auto shown(std::optional<Number> TopRank::* number, Text text) {
  return [=](const TopRank& rank) {
    return rank.*number ? text(*(rank.*number)) : std::string();
  };
}

// The driver tells the memory of the GPU, which other jobs may share.
std::string gpu_memory(const TopRank& rank) {
  if (!rank.gpu_used_bytes)
    return {};
  return cat(
      format_bytes(*rank.gpu_used_bytes), " / ", format_bytes(rank.gpu_total_bytes.value_or(0)));
}

// The age says whether a rank stands still.
std::string doing(const TopRank& rank) {
  if (rank.doing.empty())
    return {};
  return cat(fit_text(rank.doing, kMostDoing), " (", ago(rank.doing_seconds.value_or(0)), ")");
}

// A collective that ended long ago, while the rank is in another one, is a sign of a hang.
std::string last_call(const TopRank& rank) {
  if (rank.last_call.empty())
    return {};
  return cat(fit_text(rank.last_call, kMostCall),
             rank.last_call_seconds ? cat(" (", ago(*rank.last_call_seconds), ")") : "");
}

// The columns in the order in which they stand.
std::vector<TopColumn> top_columns() {
  const auto percent_text = [](double value) {
    return cat(std::lround(value), "%");
  };
  return {
      {{"rank", true}, [](const TopRank& rank) { return cat(rank.rank); }},
      {{"host"}, &TopRank::host},
      {{"device"}, &TopRank::device},
      {{"state"}, &TopRank::state},
      {{"GPU", true}, shown(&TopRank::gpu_percent, percent_text)},
      {{"GPU memory", true}, gpu_memory},
      {{"CPU", true}, shown(&TopRank::cpu_percent, percent_text)},
      {{"memory", true}, shown(&TopRank::memory_bytes, format_bytes)},
      {{"step", true}, [](const TopRank& rank) { return text_of(rank.step); }},
      {{"a step", true}, shown(&TopRank::seconds_per_step, duration_text)},
      {{"samples/s", true}, shown(&TopRank::samples_per_second, number_of)},
      {{"loss", true}, shown(&TopRank::loss, number_of)},
      {{"in, for"}, doing},
      {{"last call, ended before"}, last_call},
  };
}

// Returns the speed of all ranks together. If hosts share no folder, the ranks of some cannot be
// seen from here, and the text says how many ranks it counts.
std::string samples_in_all(const TopView& view) {
  double samples = 0;
  int64_t ranks = 0;
  for (const TopRank& rank : view.ranks) {
    if (!rank.samples_per_second)
      continue;
    samples += *rank.samples_per_second;
    ++ranks;
  }
  if (samples <= 0)
    return {};
  const auto speed = cat(", ", number_of(samples), " samples/s ");
  if (view.unseen_hosts.empty())
    return speed + "in all";
  const char* const are = word_for(ranks, "is", "are");
  return cat(speed, "of the ", plural(ranks, "rank"), " that ", are, " seen");
}

std::string time_text(const TopView& view) {
  if (!view.running) {
    const auto outcome = text_or(view.outcome, "does not run");
    return cat(": ", outcome, ", took ", duration_text(view.seconds));
  }
  return cat(", for ", view.seconds < 1 ? "0s" : duration_text(std::floor(view.seconds)));
}

// The line above the table: what runs, for how long, and how fast.
std::string heading(const TopView& view) {
  std::string text = fit_text(printable(view.title), kMostTitle);
  if (!view.id.empty())
    text += cat("  [", printable(view.id).substr(0, 8), "]");
  text += cat("  ", plural(view.ranks.size(), "rank"));
  if (view.attempt > 0)
    text += cat(", restart ", view.attempt);
  return text + time_text(view) + samples_in_all(view) + "\n";
}

// Returns the text as the value of a Prometheus label.
std::string label_text(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (is_one_of(c, '\\', '"'))
      out += '\\';
    out += c;
  }
  return out;
}

// JSON's numbers have all of their digits, and never the user's locale.
std::string prometheus_number(double value) {
  if (std::isnan(value))
    return "NaN";
  if (std::isinf(value))
    return value > 0 ? "+Inf" : "-Inf";
  return nlohmann::ordered_json(value).dump();
}

struct Gauge {
  const char* name;
  const char* help;
  std::function<std::optional<double>(const TopRank&)> value;
};

// Returns what gives a rank's number divided by `unit`, as a double.
template <class Number>
auto in_units(std::optional<Number> TopRank::* number, double unit = 1) {
  return [=](const TopRank& rank) -> std::optional<double> {
    if (!(rank.*number))
      return std::nullopt;
    return static_cast<double>(*(rank.*number)) / unit;
  };
}

// Names follow Prometheus' conventions: base units, and the unit at the end.
std::vector<Gauge> gauges() {
  const auto is_up = [](const TopRank& rank) {
    return is_one_of(rank.state, "running", "elsewhere") ? 1.0 : 0.0;
  };
  return {
      {"muster_rank_up", "1 while the rank runs.", is_up},
      {"muster_rank_step",
       "The training step that the rank has reached.",
       in_units(&TopRank::step)},
      {"muster_rank_step_seconds", "Seconds that a step takes.", &TopRank::seconds_per_step},
      {"muster_rank_samples_per_second",
       "Samples that the rank trains on in a second.",
       &TopRank::samples_per_second},
      {"muster_rank_loss", "The loss that the rank has reported last.", &TopRank::loss},
      {"muster_rank_span_seconds",
       "Seconds for which the rank has been in its current span.",
       &TopRank::doing_seconds},
      {"muster_rank_gpu_utilization_ratio",
       "Use of the rank's GPU, 0 to 1.",
       in_units(&TopRank::gpu_percent, 100)},
      {"muster_rank_gpu_memory_used_bytes",
       "Memory in use on the rank's GPU, by all processes.",
       in_units(&TopRank::gpu_used_bytes)},
      {"muster_rank_cpu_cores",
       "Cores that the rank's processes keep busy.",
       in_units(&TopRank::cpu_percent, 100)},
      {"muster_rank_resident_memory_bytes",
       "Resident memory of the rank's processes.",
       in_units(&TopRank::memory_bytes)},
  };
}

}  // namespace

// Hosts whose ranks cannot be seen, and files that could not be read, are named below the table.
std::string top_table(const TopView& view) {
  std::string text = heading(view);
  auto columns = top_columns();
  std::erase_if(columns, [&](const TopColumn& column) {
    const auto is_empty = [](const std::string& cell) {
      return cell.empty();
    };
    return all_of(view.ranks, is_empty, column.cell);
  });
  const auto heads = mapped(columns, &TopColumn::head);
  const auto rows = mapped(view.ranks, [&](const TopRank& rank) {
    return mapped(columns, [&](const TopColumn& column) { return column.cell(rank); });
  });
  if (!rows.empty())
    text += format_table(heads, rows);
  if (!view.unseen_hosts.empty()) {
    const std::string why = view.running
                                ? "no answer has come from there"
                                : cat("they have left no files in ", printable(view.run_dir));
    text += cat("the ranks of ",
                printable(join_first(view.unseen_hosts, ", ", 8)),
                " cannot be seen from here: ",
                why,
                "\n");
  }
  text += sum_of<std::string>(
      view.problems, [&](const auto& problem) { return cat("note: ", printable(problem), "\n"); });
  return text;
}

// A loss that is not finite is null, as JSON has no such number.
std::string top_json(const TopView& view) {
  using TopJson = nlohmann::ordered_json;
  const auto ranks = mapped(view.ranks, top_row_json);
  const TopJson document = {{"schema", "muster.top/1"},
                            {"id", view.id},
                            {"program", view.title},
                            {"run_dir", view.run_dir},
                            {"running", view.running},
                            {"outcome", view.outcome},
                            {"seconds", view.seconds},
                            {"attempt", view.attempt},
                            {"unseen_hosts", view.unseen_hosts},
                            {"problems", view.problems},
                            {"ranks", std::move(ranks)}};
  return json_text(document, 2) + "\n";
}

// A gauge of which no rank has a value is left out.
std::string top_prometheus(const TopView& view) {
  std::string text;
  for (const Gauge& gauge : gauges()) {
    std::string lines;
    for (const TopRank& rank : view.ranks) {
      const auto value = gauge.value(rank);
      if (!value)
        continue;
      lines += cat(gauge.name,
                   "{run=\"",
                   label_text(view.id),
                   "\",rank=\"",
                   rank.rank,
                   "\",host=\"",
                   label_text(rank.host),
                   "\",device=\"",
                   label_text(rank.device),
                   "\"} ",
                   prometheus_number(*value),
                   "\n");
    }
    if (!lines.empty())
      text +=
          cat("# HELP ", gauge.name, " ", gauge.help, "\n# TYPE ", gauge.name, " gauge\n", lines);
  }
  return text;
}

}  // namespace muster
