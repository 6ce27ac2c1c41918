// The page begins with what people ask first: how the run went, in tiles; then come the sections,
// the failure before everything else. Each section is a file of its own (job_sections.h).
#include "muster/base/contains.h"
#include "muster/base/folders.h"
#include "muster/report/number_text.h"
#include "muster/report/pages.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"

namespace muster {
namespace {

// Returns the class of the badge that shows the outcome.
std::string kind_of_outcome(const std::string& outcome) {
  if (outcome == "done")
    return "good";
  if (is_one_of(outcome, "failed", "killed"))
    return "bad";
  if (is_one_of(outcome, "stopped", "time limit"))
    return "warn";
  return "idle";
}

// The time of all launches together, without what lies between them.
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
          .value = duration_text(seconds),
          .note = launches > 1 ? cat("of ", launches, " launches") : ""};
}

// A rank may drive several GPUs.
Tile ranks_tile(const Plan& plan) {
  StringSet hosts;
  size_t gpus = 0;
  for (const RankPlan& rank : plan.ranks) {
    hosts.insert(rank.host);
    if (rank.device.is_gpu())
      gpus += 1 + rank.more_devices.size();
  }
  const std::string on = gpus > 0 ? plural(gpus, "GPU") : "on the CPU";
  const auto note = cat(plural(hosts.size(), "host"), ", ", on);
  return {.label = "Ranks", .value = cat(plan.ranks.size()), .note = note};
}

// Attempts that did not follow a failure, such as a changed set of hosts, are counted too.
Tile restarts_tile(const LaunchRecord& launch) {
  const int last = launch.attempts.empty() ? 0 : launch.attempts.back().attempt;
  Tile tile{.label = "Restarts", .value = cat(last)};
  if (launch.max_restarts > 0)
    tile.note = cat("of at most ", launch.max_restarts, " after failures");
  if (last > 0)
    tile.kind = "warn";
  return tile;
}

// Whether larger values of this name are the better ones.
bool goes_up(const std::string& name) {
  constexpr std::array<std::string_view, 4> kUp = {"acc", "per_second", "score", "f1"};
  return any_of(kUp, [&](std::string_view part) { return has_text(name, part); });
}

// The last value, with its unit and the best value so far.
Tile metric_tile(const Series& series, bool has_steps) {
  Strings notes;
  if (const auto unit = unit_of(series.name); !unit.empty())
    notes.push_back(unit);
  const bool up = goes_up(series.name);
  if (series.num_values > 1) {
    notes.push_back(cat("best ",
                        number_text(up ? series.most : series.least),
                        " at ",
                        has_steps ? "step " : "line ",
                        number_text(up ? series.most_step : series.least_step)));
  }
  return {.label = series.name, .value = number_text(series.last), .note = join(notes, ", ")};
}

// Adds the numbers that people look for first: losses, then accuracies, then speeds.
void add_metric_tiles(const MetricsFile& metrics, std::vector<Tile>& tiles) {
  // More tiles than these would not fit beside the others.
  constexpr size_t kMost = 4;
  if (metrics.has_steps) {
    double last_step = 0;
    for (const Series& series : metrics.series)
      last_step = std::max(last_step, series.last_step);
    tiles.push_back({.label = "Last step", .value = number_text(last_step)});
  }
  std::vector<const Series*> wanted;
  for (const char* const part : {"loss", "acc", "perplexity", "per_second"}) {
    for (const Series& series : metrics.series) {
      if (series.num_values > 0 && has_text(series.name, part))
        wanted.push_back(&series);
    }
  }
  wanted.resize(std::min(wanted.size(), kMost));
  for (const Series* const series : wanted)
    tiles.push_back(metric_tile(*series, metrics.has_steps));
}

// A folder may lack the plan or the launcher's record, and then has fewer tiles.
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

// The line below the title tells the runs of one program apart.
PageHead head_of(const JobRun& run) {
  const std::string outcome = outcome_of(run);
  const LaunchRecord* const launch = run.last_launch();
  std::string line = file_name(run.folder);
  if (launch != nullptr)
    line += cat(" · started ", wall_time_text(launch->began), " on ", launch->host);
  if (launch != nullptr && launch->ended && launch->exit_code != 0)
    line += cat(" · exit code ", launch->exit_code);
  return {.title = title_of(run),
          .outcome = outcome,
          .kind = kind_of_outcome(outcome),
          .line = line,
          .problems = run.problems};
}

}  // namespace

std::string job_page(const JobRun& run) {
  return cat(page_begin(head_of(run)),
             html_tiles(tiles_of(run)),
             failure_section(run),
             metrics_section(run),
             time_section(run),
             collectives_section(run),
             attempts_section(run),
             placement_section(run),
             environment_section(run),
             page_end(run.folder));
}

}  // namespace muster
