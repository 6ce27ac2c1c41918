// Which jobs of this user run on this host: one file a job in the runtime folder, locked as long as
// its launcher lives, so that none outlives its job however that ends. Written by the launcher;
// read by `muster ps` and `muster stop`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"

namespace muster {

struct JobNote {
  std::string id{};  // the run's
  int pid = 0;       // of the launcher
  // When that process began (process_start_ticks); 0: filled in, this process's.
  uint64_t started_ticks = 0;
  std::string program{};  // with its arguments
  std::string run_dir{};
  int num_ranks = 0;
  Strings devices{};          // of this host's ranks, each once: "GPU-<uuid>", "cpu:0"
  int64_t since_seconds = 0;  // since 1970
  int master_port = 0;        // that this launcher holds for rank 0; 0: none
  bool operator==(const JobNote&) const = default;
};

using JobNotes = std::vector<JobNote>;

// A note's text, and the note in one: nothing when the bytes are none, or come from another PID
// namespace.
std::string job_note_text(const JobNote& note);
std::optional<JobNote> job_note_from(const std::string& bytes);

// The job is listed as long as this lives. What keeps it from being listed is logged, and no error:
// the job itself does not need it.
class JobRegistration : NoCopy {
 public:
  // `folder`: empty is default_runtime_folder().
  explicit JobRegistration(JobNote note, const std::string& folder = "");
  ~JobRegistration();

 private:
  Fd folder_;  // locked: what clears old files out of /tmp keeps out
  std::string path_;
  Fd file_;
};

// Those of this PID namespace, by the time they began. Files of jobs that have ended are removed.
// Throws: failed_precondition for a folder that is not this user's; io.
JobNotes running_jobs(const std::string& folder = "");

// The job that `text` names: a launcher's pid, a run's id or its beginning. Throws:
// invalid_argument when there is none, or more than one.
const JobNote& find_job(const JobNotes& jobs, const std::string& text);

// The launcher's pidfd; invalid when it has ended.
Fd open_job(const JobNote& job);

// "job <id> of process <pid> (<program>)", in messages.
std::string named_job(const JobNote& job);

// Sends the signal to the launcher, which passes it on to its ranks. Throws: unavailable when that
// is not allowed.
void signal_job(const Fd& launcher, int signal);

// Whether it has ended within `patience`. Blocking: until then.
bool wait_for_job(const Fd& launcher, milliseconds patience);

}  // namespace muster
