// The record is written anew, as a whole, at the beginning of each attempt and at the end: the
// folder always has a file that can be read. Stacks get their source lines only at the end, as that
// may take seconds which a restart must not wait for.
#include "muster/launch/run_recorder.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/version.h"
#include "muster/base/wall_time.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/source_lines.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

// A job that has crashed often has many stacks, and each takes time to look up.
constexpr std::chrono::seconds kMaxLookupTime{5};

// The folder's record, to go on with. A record that cannot be read is another program's, and is
// replaced.
RunRecord earlier_record(const std::string& run_dir) {
  try {
    return read_run_record(run_dir).value_or(RunRecord());
  } catch (const Error& error) {
    log_warning(error.message(), "; the record begins anew");
    return {};
  }
}

}  // namespace

std::string run_record_path(const std::string& run_dir) {
  return run_dir + "/run.json";
}

std::optional<RunRecord> read_run_record(const std::string& run_dir) {
  const auto path = run_record_path(run_dir);
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return std::nullopt;
  return run_record_from_json(read_small_plain_file(path), path);
}

RunRecorder::RunRecorder(const LaunchOptions& options,
                         const JobFacts& job,
                         const std::string& host,
                         const Inventory* machine)
    : path_(run_record_path(job.run_dir)), host_(host), record_(earlier_record(job.run_dir)) {
  record_.machine.reset();
  if (machine != nullptr)
    record_.machine = *machine;
  // Another host of this job may have begun the launch. "none" is the id of many jobs.
  const bool may_be_begun = !record_.launches.empty() && job.run_id != "none";
  if (may_be_begun && !launch().ended && launch().run_id == job.run_id)
    return;
  std::error_code error;
  const auto own_folder = std::filesystem::current_path(error).string();
  LaunchRecord launch{.run_id = job.run_id,
                      .argv = options.argv,
                      .work_dir = text_or(options.work_dir, own_folder),
                      .host = host,
                      .muster_version = version(),
                      .pid = ::getpid(),
                      .max_restarts = options.max_restarts,
                      .began = seconds_since_1970()};
  launch.more_argvs = mapped(options.more_programs, &ProgramRanks::argv);
  record_.launches.push_back(std::move(launch));
}

RunRecorder::~RunRecorder() {
  if (!finished_)
    finish(1, "failed");
}

void RunRecorder::begin_attempt(int attempt, bool in_place) {
  launch().attempts.push_back(
      {.attempt = attempt, .in_place = in_place, .began = seconds_since_1970()});
  if (launch().attempts.size() > kMostAttempts)
    launch().attempts.erase(launch().attempts.begin());
  write();
}

void RunRecorder::end_attempt(const RankExits& exits, const std::string& fault) {
  if (launch().attempts.empty())
    return;
  AttemptRecord& attempt = launch().attempts.back();
  attempt.ended = seconds_since_1970();
  if (!fault.empty())
    attempt.fault = fault;
  attempt.exits = exits;
  const RankExit* const first = first_failure(attempt.exits);
  // The logs have what the others said, and failure.json the last attempt's.
  for (RankExit& exit : attempt.exits) {
    exit.last_lines.clear();
    exit.stack = &exit == first ? shown_stack(exit.stack) : "";
  }
}

// When a rank was replaced, the others were not to wait for its source lines. Another host may have
// other files of the program, so only the stacks of this host's ranks are looked up.
void RunRecorder::name_source_lines() {
  const auto end = Clock::now() + kMaxLookupTime;
  for (auto attempt = launch().attempts.rbegin(); attempt != launch().attempts.rend(); ++attempt) {
    for (RankExit& exit : attempt->exits) {
      const bool is_ours = exit.host == host_ && !exit.stack.empty();
      if (is_ours && Clock::now() < end)
        exit.stack = with_source_lines(exit.stack, exit.at);
    }
  }
  write();
}

void RunRecorder::explain(int attempt, const std::string& why) {
  for (AttemptRecord& one : launch().attempts) {
    if (one.attempt == attempt && one.fault.empty())
      one.fault = why;
  }
}

int RunRecorder::finish(int exit_code, const char* outcome) {
  finished_ = true;
  name_source_lines();
  take_software();
  launch().ended = seconds_since_1970();
  launch().exit_code = exit_code;
  launch().outcome = outcome;
  write();
  return exit_code;
}

// Records LibTorch, the backend and the devices as the ranks of the last attempt told them in their
// activity files. Some files are enough.
void RunRecorder::take_software() {
  if (launch().attempts.empty())
    return;
  constexpr size_t kMostFiles = 16;
  const auto run_dir = std::filesystem::path(path_).parent_path().string();
  auto files = activity_files(run_dir, launch().attempts.back().attempt);
  if (files.size() > kMostFiles)
    files.resize(kMostFiles);
  for (const ActivityFile& file : files) {
    try {
      const ActivityView view = read_activity(file.path);
      if (view.libtorch.empty())
        continue;
      launch().libtorch = view.libtorch;
      launch().backend = view.backend;
      auto& names = launch().device_names;
      if (!contains(names, view.device_name))
        names.push_back(view.device_name);
    } catch (const Error&) {
      // The rank has told nothing then.
    }
  }
}

void RunRecorder::write() {
  try {
    write_file(path_, run_record_to_json(record_));
  } catch (const std::exception& error) {
    if (!std::exchange(warned_, true))
      log_warning("the run is not recorded: ", error.what());
  }
}

const char* outcome_of(int exit_code, const RankExits& exits) {
  if (exit_code == 0)
    return "done";
  if (exit_code == kStoppedExitCode && have_stopped(exits))
    return "stopped";
  if (first_failure(exits) != nullptr)
    return "failed";
  if (exit_code == kTimeLimitExitCode)
    return "time limit";
  return exit_code > 128 ? "stopped" : "failed";
}

}  // namespace muster
