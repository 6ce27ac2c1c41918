// Why a job failed, in words and as JSON (failure.json): the first rank to fail, the others' ends
// as its consequences. Values and text; the only I/O is reading the error file that a rank left.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/launch/cause.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/run_record.h"
#include "muster/trace/compare_activity.h"

namespace muster {

// The content of a rank's TORCHELASTIC_ERROR_FILE.
struct ReportedError {
  std::string message;  // "ValueError: bad batch"
  std::string stack;
  ErrorFacts facts{};
};

// torchrun's JSON, {"message": {"message": …, "extraInfo": {"py_callstack": …}}} or {"message":
// "…"}; text that is no such JSON is the message itself. Nothing when there is no file, or an empty
// one.
std::optional<ReportedError> read_error_file(const std::string& path);

// "exit code 3", "killed by SIGKILL: …", "ended by muster (SIGTERM)".
std::string describe_end(const RankExit& exit);

// "exit code 1, std::runtime_error: no": the cause, and the error's first line where one was
// reported.
std::string cause_and_error(const RankExit& exit);

// The innermost calls of it, as many as people read.
std::string shown_stack(const std::string& stack);

// A job that a fault of its surroundings has ended ends as one that could not start.
inline constexpr int kFaultExitCode = 1;
// sysexits' EX_TEMPFAIL: a rank that was asked to stop, and has.
inline constexpr int kStoppedExitCode = 75;

// Whether all ranks have stopped as they were asked to: there are some, and each ended with that
// code.
bool have_stopped(const RankExits& exits);
bool some_have_stopped(const RankExits& exits);

// For other hosts: the story of a rank that we ended ourselves needs no evidence, and a few stories
// are enough.
RankExits brief(RankExits exits);

struct FailureContext {
  std::string run_id;
  std::string run_dir;
  int attempt = 0;   // from 0, as the folder of its logs
  int restarts = 0;  // after failures: what max_restarts counts
  int max_restarts = 0;
  std::string time{};                     // of the first failure; ISO 8601
  bool has_report = true;                 // failure.json could be written
  std::string full_disk{};                // full_disk_line() of the run's folder
  std::vector<Divergence> divergences{};  // of the ranks' collectives, earliest first
  std::vector<AttemptRecord> attempts{};  // of the job, up to this one
  BadGpus bad_gpus{};                     // of the job's, since it began
  // Why all ranks were killed, as an error, where none of them is the cause; empty: one is.
  std::string fault{};
};

// The card for people, several lines; `exits` in order of death. Empty when nothing failed by
// itself and there is no fault.
std::string failure_card(const RankExits& exits, const FailureContext& context);

// The card for programs, schema "muster.failure/1".
std::string failure_json(const RankExits& exits, const FailureContext& context);

}  // namespace muster
