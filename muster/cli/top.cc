// A sampler looks at the job again and again. On a terminal the table is redrawn in place;
// elsewhere tables follow each other; for programs there is one document. The ranks of other hosts
// are seen as far as these have answered.
#include "muster/base/contains.h"
#include "muster/base/folders.h"
#include "muster/cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/cli/live_screen.h"
#include "muster/cli/value_flags.h"
#include "muster/cli/watch.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/run_folder.h"
#include "muster/report/report.h"
#include "muster/report/top.h"
#include "muster/report/top_text.h"
#include "muster/supervise/live_lines.h"
#include "muster/trace/hosts_folder.h"

namespace muster {

namespace {

constexpr auto kTopExamples = R"(Examples:
  muster top                  your newest running job, each second; q ends it
  muster top 4f2a             the job whose id begins so; or by the launcher's pid
  muster top runs/digits      the one in that folder, also when it has ended
  muster top --once           one table
  muster top --json           the same once, for programs
  muster top --prometheus > /var/lib/node_exporter/muster.prom
)";

// The use of a CPU is the difference between two looks.
constexpr milliseconds kFirstGlance{200};
constexpr milliseconds kOthersAnswer{3'000};  // for other hosts' first answers

struct TopOptions {
  std::string target;
  bool once = false;
  bool json = false;
  bool prometheus = false;
  std::string interval = "1s";
};

// A run's folder, and its job if it runs on this host.
struct TopTarget {
  std::string run_dir;
  std::optional<JobNote> job;
};

// A job's id has no slash, but a folder may be called like one.
bool names_a_folder(const std::string& text) {
  std::error_code error;
  return contains(text, '/') || std::filesystem::is_directory(text, error);
}

// A job that runs in the folder is watched; otherwise the folder shows how one ended.
TopTarget folder_target(const std::string& path, const JobNotes& jobs) {
  TopTarget target{.run_dir = resolve_run_folder(path), .job = {}};
  for (const JobNote& job : jobs) {  // the newest counts
    if (job.run_dir == target.run_dir)
      target.job = job;
  }
  for (const char* const name : {"plan.json", "run.json", "activity"}) {
    if (path_exists(cat(target.run_dir, "/", name)))
      return target;
  }
  if (path_exists(target.run_dir + "/tasks.json")) {
    fail_usage("expected a job's id, or the folder of one, got '",
               printable(path),
               "' of a run of tasks; `muster report ",
               shell_quoted(path),
               "` makes a page of it");
  }
  fail_usage("expected a job's id, or the folder of one, got '",
             printable(path),
             "', which has no plan.json, run.json or activity; see `muster ps`");
}

// Finds the job that the user means: by its folder, its id or pid, or else the newest.
TopTarget target_of(const std::string& text) {
  const JobNotes jobs = running_jobs();
  if (!text.empty() && names_a_folder(text))
    return folder_target(text, jobs);
  if (text.empty() && jobs.empty()) {
    throw failed_precondition(
        "expected a running job of yours on this host, got none; muster top RUN_DIR shows "
        "how one ended");
  }
  const JobNote& job = text.empty() ? jobs.back() : find_job(jobs, text);
  return {job.run_dir, job};
}

// Other hosts answer only while they are asked again and again.
TopView sample(TopSampler& sampler, const TopTarget& target) {
  if (target.job)
    ask_other_hosts(target.run_dir);
  return sampler.sample();
}

// Takes two looks with a moment between them, so that shares of the CPU are those of now, and more
// while other hosts may still answer.
TopView glance(TopSampler& sampler, const TopTarget& target) {
  TopView view = sample(sampler, target);
  const Deadline deadline(can_ask_other_hosts(target.run_dir) ? kOthersAnswer : kFirstGlance);
  while (view.running) {
    std::this_thread::sleep_for(kFirstGlance);
    view = sample(sampler, target);
    if (view.hosts_have_answered() || deadline.passed())
      break;
  }
  return view;
}

// Shows tables until the user has seen enough, or the job has ended. The last one stays on the
// screen.
void show_live(TopSampler& sampler, const TopTarget& target, milliseconds interval) {
  std::string last;
  {
    LiveScreen screen(STDOUT_FILENO);
    for (auto pause = std::min(interval, kFirstGlance);; pause = interval) {
      const TopView view = sample(sampler, target);
      last = top_table(view);
      if (!view.running)
        break;
      screen.show(last + "\nq: quit\n");
      if (!screen.wait(pause))
        break;
    }
  }
  write_all(STDOUT_FILENO, last);
}

// Prints tables one after the other, until SIGINT or the job's end.
void show_lines(TopSampler& sampler, const TopTarget& target, milliseconds interval) {
  TopView view = glance(sampler, target);
  bool is_first = true;
  const auto next_table = [&] {
    if (!std::exchange(is_first, false))
      view = sample(sampler, target);
    return top_table(view);
  };
  watch(STDOUT_FILENO, next_table, {.interval = interval, .goes_on = [&] { return view.running; }});
}

// Without a job that runs there is nothing to watch, and one table is shown.
void show_top(const TopOptions& options) {
  const auto interval = parse_duration(options.interval, "--interval");
  // Every look costs CPU time on every host of the job.
  if (interval < milliseconds(100))
    fail_usage("--interval: expected 100ms or more, got ", options.interval);
  const TopTarget target = target_of(options.target);
  TopSampler sampler(target.run_dir, target.job);
  if (options.json)
    return write_all(STDOUT_FILENO, top_json(glance(sampler, target)));
  if (options.prometheus)
    return write_all(STDOUT_FILENO, top_prometheus(glance(sampler, target)));
  if (options.once || !target.job)
    return write_all(STDOUT_FILENO, top_table(glance(sampler, target)));
  // A terminal that cannot draw in place gets lines.
  const auto show = draws_anew(STDOUT_FILENO) ? show_live : show_lines;
  show(sampler, target, interval);
}

}  // namespace

// Each format is one answer, so no two of them go together.
void add_top(CLI::App& app) {
  auto* const command =
      app.add_subcommand("top", "Watch the ranks of a running job")->footer(kTopExamples);
  const auto options = std::make_shared<TopOptions>();
  command->add_option(
      "JOB",
      options->target,
      "A job's id or the beginning of it, its launcher's pid, or its run's folder [your newest]");
  auto* const once = command->add_flag("--once", options->once, "Print one table and end");
  auto* const json =
      command->add_flag("--json", options->json, "Print the same once, as JSON")->excludes(once);
  command
      ->add_flag(
          "--prometheus", options->prometheus, "Print the same once, in Prometheus' text format")
      ->excludes(once)
      ->excludes(json);
  command->add_option("--interval", options->interval, "Time from one look to the next [1s]")
      ->type_name("TIME");
  command->callback([options] { show_top(*options); });
}

}  // namespace muster
