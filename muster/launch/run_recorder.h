// Keeps run.json of a run's folder up to date while a job goes on. For launchers; a folder that
// cannot be written does not hold up a job.
#pragma once

#include <optional>
#include <string>

#include "muster/base/no_copy.h"
#include "muster/launch/launch.h"
#include "muster/launch/rank_spec.h"
#include "muster/launch/run_record.h"

namespace muster {

std::string run_record_path(const std::string& run_dir);

// The record that the folder has; nothing when it has none. Throws: invalid_argument when that is
// no record; io.
std::optional<RunRecord> read_run_record(const std::string& run_dir);

class RunRecorder : NoCopy {
 public:
  // Adds a launch to those that the folder's record has, or goes on with the last of them when that
  // is this job's and has not ended: another host of the job may have begun it. `host`: this one.
  // `machine`: null where hosts are several.
  RunRecorder(const LaunchOptions& options,
              const JobFacts& job,
              const std::string& host,
              const Inventory* machine);
  // A job that ends without finish(), as by an exception, has failed.
  ~RunRecorder();

  // `in_place`: only the ranks that failed before are started.
  void begin_attempt(int attempt, bool in_place = false);
  void end_attempt(const RankExits& exits, const std::string& fault);

  // Why an attempt was ended on this host, where none of its own ranks is the cause.
  void explain(int attempt, const std::string& why);

  // Adds source lines to the stacks of this host's ranks, as finish() does. Blocking: some seconds
  // at most.
  void name_source_lines();

  // The job has ended. Returns `exit_code`.
  int finish(int exit_code, const char* outcome);

  // This host takes no more part: the job may go on, and another host keeps its record.
  void hand_over() { finished_ = true; }

 private:
  LaunchRecord& launch() { return record_.launches.back(); }
  void take_software();
  void write();

  std::string path_;
  std::string host_;  // this one
  RunRecord record_;
  bool finished_ = false;
  bool warned_ = false;
};

// How a job with this exit code has ended: "done", "failed", "stopped" or "time limit". `exits` are
// those of its last attempt.
const char* outcome_of(int exit_code, const RankExits& exits);

}  // namespace muster
