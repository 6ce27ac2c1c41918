// A run's folder is written by several programs and may be of any age, so every file of it is read
// on its own: one that is missing is nothing special, and one that is damaged is a problem to tell
// beside all that the others say.
#include "muster/report/job_run.h"

#include <exception>
#include <functional>
#include <nlohmann/json.hpp>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/rank_exit_json.h"
#include "muster/launch/run_recorder.h"
#include "muster/placement/plan_json.h"
#include "muster/report/rank_work.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/compare_activity.h"

namespace muster {
namespace {

// Runs `read` if the file is there. An exception of it becomes one of the run's problems.
void read_part(JobRun& run,
               const char* name,
               const std::function<void(const std::string& path)>& read) {
  const auto path = cat(run.folder, "/", name);
  if (!path_exists(path))
    return;
  try {
    read(path);
  } catch (const std::exception& problem) {
    run.problems.push_back(cat(name, " is left out: ", printable(json_words(problem.what()))));
  }
}

// The launcher's card is made again from it, as the file does not hold it. Throws: nlohmann's
// exceptions.
JobFailure failure_of(const nlohmann::ordered_json& json, const std::string& folder) {
  JobFailure failure{.time = json.value("time", ""), .attempt = json.value("attempt", 0)};
  if (const auto number = member_or_null(json, "exit_code"); number.is_number_integer())
    failure.exit_code = number.get<int>();
  failure.fault = text_or_empty(json, "fault");
  if (const auto first = member_or_null(json, "first"); first.is_object())
    failure.exits.push_back(rank_exit_from_json(first));
  append_mapped(failure.exits, json.at("others"), rank_exit_from_json);
  failure.card = failure_card(failure.exits,
                              {.run_id = json.value("run_id", ""),
                               .run_dir = folder,
                               .attempt = failure.attempt,
                               .restarts = failure.attempt,
                               .max_restarts = json.value("max_restarts", 0),
                               .time = failure.time,
                               .fault = failure.fault});
  return failure;
}

}  // namespace

JobFailure job_failure_from(const std::string& text, const std::string& folder) {
  std::string got = "JSON of more than 64 levels";
  if (!nests_too_deep(text)) {
    try {
      return failure_of(nlohmann::ordered_json::parse(text), folder);
    } catch (const nlohmann::json::exception& error) {
      got = json_words(error.what());
    }
  }
  throw invalid_argument("expected a job's failure, got ", got);
}

namespace {

// Another host's launcher leaves its note there, so a job of this folder may run unseen.
bool is_running_here(const JobRun& run) {
  try {
    return any_of(running_jobs(), [&](const JobNote& job) { return job.run_dir == run.folder; });
  } catch (const Error&) {
    return false;  // without a runtime folder that can be trusted nothing is known to run
  }
}

// Tells what of metrics.jsonl is not on the page.
void add_metrics_problems(JobRun& run) {
  const MetricsFile& metrics = run.metrics;
  if (metrics.num_broken > 0) {
    const bool one = metrics.num_broken == 1;
    run.problems.push_back(cat(
        "metrics.jsonl: ",
        metrics.num_broken,
        " of ",
        plural(metrics.num_lines, "line"),
        one ? " is not a JSON object and is left out" : " are not JSON objects and are left out",
        "; the first is line ",
        metrics.first_broken));
  }
  if (metrics.cut)
    run.problems.push_back("metrics.jsonl: only its first 512 MiB are shown");
  if (metrics.series_left_out > 0)
    run.problems.push_back(
        cat("metrics.jsonl: ", metrics.series_left_out, " more names have no chart"));
}

}  // namespace

bool is_job_run(const std::string& folder) {
  for (const char* const name :
       {"plan.json", "run.json", "metrics.jsonl", "failure.json", "activity"}) {
    if (path_exists(cat(folder, "/", name)))
      return true;
  }
  return false;
}

JobRun read_job_run(const std::string& folder) {
  JobRun run{.folder = folder};
  read_part(run, "run.json", [&](const std::string& path) {
    run.record = run_record_from_json(read_small_plain_file(path), path);
  });
  read_part(run, "plan.json", [&](const std::string& path) {
    run.plan = plan_from_json(read_small_plain_file(path), path);
  });
  read_part(run, "failure.json", [&](const std::string& path) {
    run.failure = job_failure_from(read_small_plain_file(path), folder);
  });
  read_part(
      run, "metrics.jsonl", [&](const std::string& path) { run.metrics = read_metrics(path); });
  run.ranks = read_ranks(folder, run.problems);
  run.divergences = mapped(compare_activity(run.ranks), &Divergence::text);
  // Now is taken after the files were read, so that no time in them lies after it.
  run.now_ns = activity_now();
  run.goes_on = is_running_here(run);
  add_metrics_problems(run);
  return run;
}

// A launch without an end was killed together with its launcher, unless it has told a failure.
std::string outcome_of(const JobRun& run) {
  if (run.goes_on)
    return "running";
  const LaunchRecord* const launch = run.last_launch();
  if (launch != nullptr && launch->ended)
    return launch->outcome;
  if (run.failure)
    return "failed";
  return launch != nullptr ? "killed" : "unknown";
}

std::string title_of(const JobRun& run) {
  std::string name = file_name(run.folder);
  const LaunchRecord* const launch = run.last_launch();
  if (launch == nullptr || launch->argv.empty())
    return name;
  const Strings& argv = launch->argv;
  const auto program = file_name(argv.front());
  const bool is_python = program.starts_with("python") && argv.size() > 1;
  // The script's name says more than its interpreter's.
  if (is_python && !argv[1].starts_with('-'))
    return file_name(argv[1]);
  return program;
}

}  // namespace muster
