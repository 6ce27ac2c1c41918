// A launcher leaves a note about its job in the user's runtime folder (job_registry.h). Jobs are
// told apart by the beginnings of their ids, as people type them.
#include "muster/base/indices_of.h"
#include "muster/cli/commands.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_member.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/draw/text_table.h"
#include "muster/launch/job_registry.h"

namespace muster {

namespace {

constexpr auto kPsExamples = R"(Examples:
  muster ps            your running jobs on this host
  muster ps --json     the same for programs
)";

constexpr auto kStopExamples = R"(Examples:
  muster stop 4f2a        the job whose id begins so: as Ctrl-C in its terminal would, but with SIGTERM
  muster stop --all       every job that `muster ps` lists
  muster stop --kill 4711 at once, by the launcher's pid; nothing of the job is left
)";

// People read and type this many characters of an id.
constexpr size_t kShortId = 8;

// Ids are whole here; the table shortens them.
std::string jobs_json(const JobNotes& jobs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const JobNote& job : jobs) {
    list.push_back({{"id", job.id},
                    {"pid", job.pid},
                    {"program", job.program},
                    {"run_dir", job.run_dir},
                    {"num_ranks", job.num_ranks},
                    {"devices", job.devices},
                    {"since_seconds", job.since_seconds}});
  }
  const nlohmann::ordered_json document = {{"schema", "muster.jobs/1"}, {"jobs", list}};
  return json_text(document, 2) + "\n";
}

// Returns how many characters of the ids tell all jobs apart.
size_t shown_id_size(const JobNotes& jobs) {
  StringSet shown;
  for (const JobNote& job : jobs) {
    if (!shown.insert(job.id.substr(0, kShortId)).second)
      return npos;
  }
  return kShortId;
}

// A clock that was set back must not make an age negative.
std::string jobs_text(const JobNotes& jobs) {
  if (jobs.empty())
    return "no job of yours runs on this host\n";
  const size_t id_size = shown_id_size(jobs);
  TableRows rows;
  for (const JobNote& job : jobs) {
    const std::chrono::seconds age(std::max<int64_t>(0, std::time(nullptr) - job.since_seconds));
    const auto devices =
        mapped(job.devices, [&](const auto& device) { return device.substr(0, kShortId + 4); });
    rows.push_back({job.id.substr(0, id_size),
                    cat(job.pid),
                    format_duration(age),
                    cat(job.num_ranks),
                    join(devices, " "),
                    job.program,
                    job.run_dir});
  }
  return format_table(
      {{"id"}, {"pid", true}, {"for", true}, {"ranks", true}, {"devices"}, {"program"}, {"folder"}},
      rows);
}

// The patience is kept as it was typed, for the message.
struct StopOptions {
  Strings jobs;
  bool all = false;
  bool kill = false;
  std::string patience = "60s";
};

// Throws: invalid_argument for a text that fits no job, or several.
JobNotes jobs_to_stop(const StopOptions& options) {
  JobNotes running = running_jobs();
  if (options.all)
    return running;
  if (options.jobs.empty()) {
    throw invalid_argument("expected a job's id or --all, got neither (",
                           running.size(),
                           " running); see `muster ps`");
  }
  return mapped(options.jobs, [&](const auto& text) { return find_job(running, text); });
}

// Signals all jobs before it waits for any, so that they end together. Returns the exit code.
int stop_jobs(const StopOptions& options) {
  const auto patience = parse_duration(options.patience, "--timeout");
  const JobNotes jobs = jobs_to_stop(options);
  const auto launchers = mapped(jobs, open_job);
  for (const Fd& launcher : launchers)
    signal_job(launcher, options.kill ? SIGKILL : SIGTERM);
  bool all_ended = true;
  for (const size_t i : indices_of(jobs)) {
    std::string end = "has ended";
    if (!wait_for_job(launchers[i], patience)) {
      all_ended = false;
      end = cat(
          "still runs after ", options.patience, "; muster stop --kill ", jobs[i].pid, " ends it");
    }
    const auto line = cat("job ", jobs[i].id, " (pid ", jobs[i].pid, ") ", end);
    write_all(STDOUT_FILENO, printable(line) + "\n");
  }
  return all_ended ? 0 : 1;
}

}  // namespace

// Jobs of other users and of other hosts are not listed.
void add_ps(CLI::App& app) {
  auto* const command =
      app.add_subcommand("ps", "Show your running jobs on this host")->footer(kPsExamples);
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print JSON");
  command->callback([as_json] {
    const JobNotes jobs = running_jobs();
    write_all(STDOUT_FILENO, *as_json ? jobs_json(jobs) : jobs_text(jobs));
  });
}

// --all and names contradict each other, which CLI11 checks.
void add_stop(CLI::App& app, int* exit_code) {
  auto* const command =
      app.add_subcommand("stop", "End your running jobs on this host")->footer(kStopExamples);
  const auto options = std::make_shared<StopOptions>();
  auto* const jobs = command->add_option(
      "JOB", options->jobs, "A job's id or the beginning of it, or its launcher's pid");
  command->add_flag("--all", options->all, "End every job that `muster ps` lists")->excludes(jobs);
  command->add_flag("--kill", options->kill, "End them by SIGKILL: ranks get no time to save");
  command->add_option("--timeout", options->patience, "How long to wait for their end [60s]")
      ->type_name("TIME");
  command->callback([options, exit_code] { *exit_code = stop_jobs(*options); });
}

}  // namespace muster
