// Each launcher keeps a note of its job in the runtime folder, and a lock on it. The kernel lets
// the lock go when the launcher ends, however that comes, so a note without a lock is of a job that
// is over, and whoever reads it removes it. Processes are held by pidfd: a number may be used
// again.
#include "muster/launch/job_registry.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "muster/base/byte_lock.h"
#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/log.h"
#include "muster/base/poll_one.h"
#include "muster/base/runtime_folder.h"
#include "muster/launch/json_members.h"
#include "muster/supervise/child.h"
#include "muster/supervise/descendants.h"

namespace muster {

namespace {

using JobJson = nlohmann::ordered_json;

constexpr auto kJobSchema = "muster.job/1";
constexpr size_t kMaxProgram = 4000;
constexpr size_t kShownProgram = 60;
constexpr size_t kMaxNote = size_t{1} << 20;

// Pids have a meaning only within their namespace, and containers may share the folder.
std::string pid_namespace() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
}

constexpr auto kNoteMembers = [](auto& note, const auto& visit) {
  visit("id", note.id);
  visit("pid", note.pid);
  visit("started_ticks", note.started_ticks);
  visit("program", note.program);
  visit("run_dir", note.run_dir);
  visit("num_ranks", note.num_ranks);
  visit("devices", note.devices);
  visit("since_seconds", note.since_seconds);
  visit("master_port", note.master_port);
};

}  // namespace

// The note as a line of JSON. A program's command line may be long, and is cut.
std::string job_note_text(const JobNote& note) {
  JobJson document = members_to_json(note, kNoteMembers);
  document["schema"] = kJobSchema;
  document["pid_namespace"] = pid_namespace();
  document["program"] = note.program.substr(0, kMaxProgram);
  return json_text(document, -1, true) + "\n";
}

// Nothing when the bytes are no such note, or one from another pid namespace.
std::optional<JobNote> job_note_from(const std::string& bytes) {
  if (nests_too_deep(bytes))
    return std::nullopt;
  try {
    const JobJson document = JobJson::parse(bytes);
    if (document.at("schema") != kJobSchema || document.at("pid_namespace") != pid_namespace())
      return std::nullopt;
    JobNote note;
    present_members_from_json(document, note, kNoteMembers);
    return note;
  } catch (const JobJson::exception&) {
    return std::nullopt;
  }
}

namespace {

std::string folder_or_default(const std::string& given) {
  return given.empty() ? default_runtime_folder() : given;
}

std::string registry_folder(const std::string& given) {
  return folder_or_default(given) + "/jobs";
}

Fd open_folder_above(const std::string& given, bool create) {
  return open_runtime_folder(folder_or_default(given), create);
}

// Returns an invalid descriptor when there is none.
Fd open_registry(const std::string& given) {
  if (!open_folder_above(given, false).valid())
    return {};
  return open_runtime_folder(registry_folder(given), false);
}

std::string bytes_of(int fd) {
  std::string bytes(kMaxNote, '\0');
  const ssize_t n = ::pread(fd, bytes.data(), bytes.size(), 0);
  bytes.resize(std::max<ssize_t>(n, 0));
  return bytes;
}

// The notes' names. The descriptor stays open.
Strings names_in(int folder) {
  Strings names;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::fdopendir(::fcntl(folder, F_DUPFD_CLOEXEC, 0)),
                                                 ::closedir);
  if (!list)
    return names;
  while (const dirent* entry = ::readdir(list.get())) {
    const std::string name = entry->d_name;
    if (name.ends_with(".json"))
      names.push_back(name);
  }
  return names;
}

// The note is written and locked under another name first, so that nobody sees it without its lock.
Fd make_note(const std::string& aside, const std::string& path, const JobNote& note) {
  Fd file = open_path(aside, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, "cannot make", 0600);
  if (const int error = set_byte_lock(file.get(), F_WRLCK); error != 0)
    fail_errno(error, "cannot lock '", aside, "'");
  write_all(file.get(), job_note_text(note), path);
  if (::rename(aside.c_str(), path.c_str()) != 0)
    fail_errno(errno, "cannot name '", path, "'");
  return file;
}

}  // namespace

// A job that cannot be noted runs all the same.
JobRegistration::JobRegistration(JobNote note, const std::string& folder) {
  if (note.started_ticks == 0)
    note.started_ticks = process_start_ticks(::getpid());
  try {
    folder_ = open_folder_above(folder, true);
    const Fd made = open_runtime_folder(registry_folder(folder), true);
    const auto name = cat(registry_folder(folder), "/", note.pid, "-", note.started_ticks);
    path_ = name + ".json";
    file_ = make_note(name + ".new", path_, note);
  } catch (const Error& error) {
    log_warning("`muster ps` will not show this job: ", error.message());
  }
}

JobRegistration::~JobRegistration() {
  if (file_.valid())
    ::unlink(path_.c_str());
}

// Notes without a lock are of jobs that were killed: they are removed.
JobNotes running_jobs(const std::string& given) {
  JobNotes jobs;
  const Fd folder = open_registry(given);
  if (!folder.valid())
    return jobs;
  for (const auto& name : names_in(folder.get())) {
    const Fd file(
        ::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file.valid())
      continue;
    if (!is_locked_by_another(file.get())) {
      ::unlinkat(folder.get(), name.c_str(), 0);
    } else if (auto job = job_note_from(bytes_of(file.get()))) {
      jobs.push_back(std::move(*job));
    }
  }
  std::ranges::sort(
      jobs, {}, [](const JobNote& job) { return std::pair(job.since_seconds, job.pid); });
  return jobs;
}

std::string named_job(const JobNote& job) {
  return printable(cat(
      "job ", job.id, " of process ", job.pid, " (", job.program.substr(0, kShownProgram), ")"));
}

// An id that is told in full is stronger than one that only begins so, and a pid than both.
const JobNote& find_job(const JobNotes& jobs, const std::string& text) {
  std::vector<const JobNote*> found;
  std::vector<const JobNote*> beginning;
  for (const JobNote& job : jobs) {
    if (cat(job.pid) == text)
      return job;
    if (job.id == text)
      found.push_back(&job);
    if (!text.empty() && job.id.starts_with(text))
      beginning.push_back(&job);
  }
  if (found.empty())
    found = std::move(beginning);
  if (found.size() == 1)
    return *found[0];
  const auto why = found.empty() ? cat("none of ", jobs.size(), " running jobs")
                                 : cat("of ", found.size(), " jobs; give the pid");
  throw invalid_argument(
      printable(cat("expected a running job's id, its beginning, or its launcher's pid, got '",
                    text,
                    "' (",
                    why,
                    "); `muster ps` lists them")));
}

// Returns an invalid descriptor for a launcher that has ended. Throws: io.
Fd open_job(const JobNote& job) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, job.pid, 0)));
  if (!process.valid() && errno != ESRCH)
    fail_errno(errno, "cannot open process ", job.pid);
  // Another process may have its number by now.
  if (process.valid() && process_start_ticks(job.pid) != job.started_ticks)
    process.reset();
  return process;
}

void signal_job(const Fd& launcher, int signal) {
  if (!launcher.valid())
    return;
  if (::syscall(SYS_pidfd_send_signal, launcher.get(), signal, nullptr, 0) == 0 || errno == ESRCH)
    return;
  throw unavailable("cannot send ", signal_name(signal), ": ", std::strerror(errno));
}

// A pidfd becomes readable when its process ends.
bool wait_for_job(const Fd& launcher, milliseconds patience) {
  if (!launcher.valid())
    return true;
  const Deadline deadline(patience);
  int rc = 0;
  do {
    rc = poll_one(launcher.get(), POLLIN, deadline.left_for_poll());
  } while (rc < 0 && errno == EINTR);
  return rc == 1;
}

}  // namespace muster
