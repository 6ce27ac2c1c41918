#include "muster/report/job_page.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "muster/base/strings.h"
#include "muster/base/version.h"
#include "muster/draw/xml_text.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"

namespace muster {
namespace {

std::string kind_of_outcome(const std::string& outcome) {
  if (outcome == "done")
    return "good";
  if (outcome == "failed" || outcome == "killed")
    return "bad";
  if (outcome == "stopped" || outcome == "time limit")
    return "warn";
  return "idle";
}

Tile time_tile(const JobRun& run) {
  double seconds = 0;
  for (const LaunchRecord& launch : run.record.launches) {
    double ended = launch.ended.value_or(launch.began);
    for (const AttemptRecord& attempt : launch.attempts)
      ended = std::max(ended, attempt.ended.value_or(attempt.began));
    seconds += ended - launch.began;
  }
  const size_t launches = run.record.launches.size();
  return {.label = run.goes_on ? "Time, until its last attempt" : "Time",
          .value = span_text(seconds),
          .note = launches > 1 ? cat("of ", launches, " launches") : ""};
}

Tile ranks_tile(const Plan& plan) {
  std::set<std::string> hosts;
  size_t gpus = 0;
  for (const RankPlan& rank : plan.ranks) {
    hosts.insert(rank.host);
    gpus += rank.device.kind == DeviceAssignment::Kind::gpu ? 1 + rank.more_devices.size() : 0;
  }
  std::string note = plural(hosts.size(), "host");
  note += gpus > 0 ? cat(", ", plural(gpus, "GPU")) : std::string(", on the CPU");
  return {.label = "Ranks", .value = cat(plan.ranks.size()), .note = note};
}

Tile restarts_tile(const LaunchRecord& launch) {
  const int last = launch.attempts.empty() ? 0 : launch.attempts.back().attempt;
  return {.label = "Restarts",
          .value = cat(last),
          .note = launch.max_restarts > 0
                      ? cat("of at most ", launch.max_restarts, " after failures")
                      : "",
          .kind = last > 0 ? "warn" : ""};
}

bool goes_up(const std::string& name) {
  constexpr std::array<const char*, 4> kUp = {"acc", "per_second", "score", "f1"};
  return std::any_of(kUp.begin(), kUp.end(), [&](const char* part) {
    return name.find(part) != std::string::npos;
  });
}

// The numbers that people look for first: losses, accuracies, speeds.
void add_metric_tiles(const MetricsFile& metrics, std::vector<Tile>& tiles) {
  constexpr std::array<const char*, 4> kWanted = {"loss", "acc", "perplexity", "per_second"};
  constexpr size_t kMost = 4;
  double last_step = 0;
  for (const Series& series : metrics.series)
    last_step = std::max(last_step, series.last_step);
  if (metrics.has_steps)
    tiles.push_back({.label = "Last step", .value = number_text(last_step)});
  size_t added = 0;
  for (const char* const wanted : kWanted) {
    for (const Series& series : metrics.series) {
      if (series.num_values == 0 || series.name.find(wanted) == std::string::npos || added == kMost)
        continue;
      const bool up = goes_up(series.name);
      ++added;
      std::vector<std::string> notes;
      if (const std::string unit = unit_of(series.name); !unit.empty())
        notes.push_back(unit);
      if (series.num_values > 1)
        notes.push_back(cat("best ",
                            number_text(up ? series.most : series.least),
                            " at ",
                            metrics.has_steps ? "step " : "line ",
                            number_text(up ? series.most_step : series.least_step)));
      tiles.push_back(
          {.label = series.name, .value = number_text(series.last), .note = join(notes, ", ")});
    }
  }
}

std::vector<Tile> tiles_of(const JobRun& run) {
  std::vector<Tile> tiles;
  if (!run.record.launches.empty())
    tiles.push_back(time_tile(run));
  if (run.plan && !run.plan->ranks.empty())
    tiles.push_back(ranks_tile(*run.plan));
  if (const LaunchRecord* const launch = run.last_launch())
    tiles.push_back(restarts_tile(*launch));
  add_metric_tiles(run.metrics, tiles);
  return tiles;
}

std::string header_of(const JobRun& run) {
  const std::string outcome = outcome_of(run);
  const LaunchRecord* const launch = run.last_launch();
  std::string line = std::filesystem::path(run.folder).filename().string();
  if (launch != nullptr)
    line += cat(" · started ", wall_time_text(launch->began), " on ", launch->host);
  if (launch != nullptr && launch->ended && launch->exit_code != 0)
    line += cat(" · exit code ", launch->exit_code);
  return cat("<header>\n<div class=\"line\"><h1>",
             xml_text(title_of(run)),
             "</h1><span class=\"badge ",
             kind_of_outcome(outcome),
             "\">",
             xml_text(outcome),
             "</span></div>\n<p>",
             xml_text(line),
             "</p>\n</header>\n");
}

}  // namespace

std::string job_page(const JobRun& run) {
  std::string html = page_begin(cat(title_of(run), ": ", outcome_of(run))) + header_of(run);
  for (const std::string& problem : run.problems)
    html += cat("<p class=\"notice\">", xml_text(problem), "</p>\n");
  html += html_tiles(tiles_of(run));
  html += failure_section(run) + metrics_section(run) + time_section(run) +
          collectives_section(run) + attempts_section(run) + placement_section(run) +
          environment_section(run);
  return cat(html,
             "<footer>Made by muster ",
             version(),
             " from ",
             xml_text(run.folder),
             "</footer>\n",
             page_end());
}

}  // namespace muster
