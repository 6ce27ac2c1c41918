// Records gather in a buffer. `write` hands them to the kernel, and a thread of the journal's own
// brings all that was handed over to the disk with one fdatasync, then waits a little for more. The
// mutex guards the counts that both threads use; the buffer and the file's end are the caller's
// alone.
#include "muster/tasks/journal/journal.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/byte_lock.h"
#include "muster/base/contains.h"
#include "muster/base/hex.h"
#include "muster/base/json_member.h"
#include "muster/base/lock.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/wall_time.h"
#include "muster/tasks/journal/line.h"
#include "muster/tasks/journal/task_file.h"

namespace muster {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The time between two calls of fdatasync, in which records gather. It is below the 20 ms after
// which all are on the disk.
constexpr milliseconds kGatherFor{12};

// A run that was killed while it started a process leaves the lock to that one, for the moment
// until it is gone too.
constexpr milliseconds kLockPatience{1'000};

constexpr std::pair<AttemptEnd, const char*> kAttemptEnds[] = {
    {AttemptEnd::done, "done"},
    {AttemptEnd::failed, "failed"},
    {AttemptEnd::again, "again"},
    {AttemptEnd::interrupted, "interrupted"},
    {AttemptEnd::stopped, "stopped"},
    {AttemptEnd::refused, "refused"}};

// Brings a file to the disk, or a folder: the names in it. A folder that this user may not read is
// left to the system.
void sync_path(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() && errno == EACCES)
    return;
  if (!file.valid() || ::fsync(file.get()) != 0)
    fail_errno(errno, "journal: cannot write '", path, "' to the disk");
}

// Returns 0, or the errno that says why the records are not on the disk. A file that somebody has
// removed takes them along.
int bring_to_disk(const Fd& file) {
  struct stat status{};
  if (::fdatasync(file.get()) != 0 || ::fstat(file.get(), &status) != 0)
    return errno;
  return status.st_nlink == 0 ? ENOENT : 0;
}

// Locks the file. False when another run has it for longer than one that has just been killed
// would.
bool lock_file(const Fd& file, const std::string& path) {
  const Deadline deadline(kLockPatience);
  for (;;) {
    const int error = set_byte_lock(file.get(), F_WRLCK);
    if (error == 0)
      return true;
    if (!is_one_of(error, EAGAIN, EACCES))
      fail_errno(error, "journal: cannot lock '", path, "'");
    if (deadline.passed())
      return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

}  // namespace

std::string hash_of(const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    throw Error(ErrorCode::internal, "journal: OpenSSL has no SHA-256");
  return to_hex({reinterpret_cast<const char*>(digest.data()), size});
}

std::string journal_path(const std::string& run_dir) {
  return run_dir + "/journal";
}

// Asks for a lock without taking it: whoever looks on must not be taken for a run.
bool is_in_use(const std::string& run_dir) {
  const Fd file(::open(journal_path(run_dir).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return file.valid() && is_locked_by_another(file.get());
}

std::string journal_line(const std::string& json) {
  return cat(hash_of(json).substr(0, kJournalSumChars), " ", json, "\n");
}

Journal::Journal(const std::string& run_dir)
    : path_(journal_path(run_dir)),
      file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644)),
      notice_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!file_.valid())
    fail_errno(errno, "journal: cannot open '", path_, "'");
  if (!notice_.valid())
    fail_errno("journal: cannot make an eventfd", errno);
  if (lock_file(file_, path_))
    return;
  throw failed_precondition(
      "journal: expected nobody to use '",
      printable(run_dir),
      "', got another run that goes on there; see `muster ps`, or give another --run-dir");
}

// Records that were handed to the kernel are brought to the disk first.
Journal::~Journal() {
  if (!syncer_.joinable())
    return;
  {
    const Lock lock(mutex_);
    ending_ = true;
  }
  written_more_.notify_all();
  hurried_.notify_all();
  syncer_.join();
}

// Whether the file ends after the last whole record now, and is written on from there.
bool Journal::cut() {
  const off_t end = bytes_;
  return ::ftruncate(file_.get(), end) == 0 && ::lseek(file_.get(), end, SEEK_SET) >= 0;
}

// The names of the journal and of its folder must be on the disk too, or a crash could take the
// file away.
void Journal::begin_at(uint64_t bytes, const std::string& last_sum) {
  bytes_ = bytes;
  last_sum_ = last_sum;
  if (!cut())
    fail_errno(errno, "journal: cannot cut '", path_, "'");
  const fs::path folder = fs::absolute(path_).lexically_normal().parent_path();
  const auto tasks = task_file_path(folder.string());  // without it no run goes on
  if (fs::exists(tasks))
    sync_path(tasks);
  sync_path(folder.string());
  sync_path(folder.parent_path().string());
  const BlockedSignals blocked;  // signals are the main thread's affair
  syncer_ = std::thread([this] { keep_syncing(); });
}

// Adds the sum of the record before it, its own sum, and a newline.
uint64_t Journal::append(std::string json) {
  if (!last_sum_.empty()) {
    json.pop_back();
    json += cat(",\"", kJournalAfter, "\":\"", last_sum_, "\"}");
  }
  const auto line = journal_line(json);
  last_sum_.assign(line, 0, kJournalSumChars);
  buffer_ += line;
  return ++appended_;
}

uint64_t Journal::head(const JournalHead& head, size_t num_tasks) {
  return append(json_text(Json{{"e", "run"},
                               {"schema", kJournalSchema},
                               {"run", head.run_id},
                               {"tasks_hash", head.tasks_hash},
                               {"num_tasks", num_tasks},
                               {"mark", head.mark},
                               {"time", seconds_since_1970()}}));
}

uint64_t Journal::resume(const std::string& mark, double at) {
  return append(
      json_text(Json{{"e", "resume"}, {"mark", mark}, {"at", at}, {"time", seconds_since_1970()}}));
}

uint64_t Journal::mark(const std::string& mark, double at) {
  return append(json_text(Json{{"e", "mark"}, {"mark", mark}, {"at", at}}));
}

uint64_t Journal::start(const std::string& task,
                        const TaskAttempt& attempt,
                        const TakenShare& share) {
  Json json = {{"e", "start"},
               {"task", task},
               {"attempt", attempt.attempt},
               {"at", attempt.began},
               {"host", attempt.host}};
  if (!attempt.devices.empty()) {
    json["devices"] = attempt.devices;
    json["gpus"] = attempt.gpu_indices;
    json["fraction"] = attempt.gpu_fraction;
    json["memory"] = share.memory_bytes;
  }
  json["num_cpus"] = share.cpus;
  add_unless_default(json, "cpus", attempt.cpus);
  json["log"] = attempt.log;
  return append(json_text(json));
}

// The record tells one thing of the end: that the attempt was lost, its signal, or its exit code.
uint64_t Journal::end(const std::string& task,
                      const TaskAttempt& attempt,
                      AttemptEnd how,
                      const std::string& reason,
                      const std::string& last_json) {
  Json json = {{"e", "end"},
               {"task", task},
               {"attempt", attempt.attempt},
               {"at", attempt.ended.value_or(0)},
               {"how", lookup(kAttemptEnds, how, "?")}};
  if (attempt.lost) {
    json["lost"] = true;
  } else if (attempt.signal != 0) {
    json["signal"] = attempt.signal;
  } else {
    json["code"] = attempt.exit_code;
  }
  add_unless_default(json, "timed_out", attempt.timed_out);
  add_unless_default(json, "reason", reason);
  add_unless_default(json, "json", last_json);
  return append(json_text(json));
}

uint64_t Journal::skip(const std::string& task, const std::string& reason, double at) {
  return append(json_text(Json{{"e", "skip"}, {"task", task}, {"reason", reason}, {"at", at}}));
}

uint64_t Journal::finish(const std::string& why, double at) {
  return append(json_text(Json{{"e", "finish"}, {"why", why}, {"at", at}}));
}

// A record of which only a part fits (disk full) is cut off again.
void Journal::write() {
  if (buffer_.empty())
    return;
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t n = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
    if (n > 0) {
      done += n;
    } else if (errno != EINTR) {
      // A record is there whole or not at all. What cannot be cut off now, the next reader cuts
      // off.
      const int why = errno;
      cut();
      fail_errno(why, "journal: cannot write '", path_, "'");
    }
  }
  bytes_ += buffer_.size();
  buffer_.clear();
  bool wake = false;
  {
    const Lock lock(mutex_);
    written_ = appended_;
    wake = std::exchange(syncer_sleeps_, false);
  }
  if (wake)
    written_more_.notify_one();
}

// The thread does not wait for more records before its next fdatasync.
void Journal::hurry() {
  {
    const Lock lock(mutex_);
    if (hurry_)
      return;
    hurry_ = true;
  }
  hurried_.notify_one();
}

// The thread's loop. It ends when it is told to and nothing is left to do, or at the first error,
// which `on_disk` and `sync` tell.
void Journal::keep_syncing() {
  UniqueLock lock(mutex_);
  for (;;) {
    syncer_sleeps_ = true;
    written_more_.wait(lock, [&] { return ending_ || written_ > synced_; });
    syncer_sleeps_ = false;
    if (written_ == synced_)
      return;  // the journal is being closed
    const uint64_t until = written_;
    hurry_ = false;
    lock.unlock();
    const auto started = Clock::now();
    const int failed = bring_to_disk(file_);
    lock.lock();
    sync_errno_ = failed;
    if (failed == 0)
      synced_ = until;
    synced_more_.notify_all();
    const uint64_t one = 1;
    (void)!::write(notice_.get(), &one, sizeof(one));  // fails only when it is readable already
    if (failed != 0)
      return;
    hurried_.wait_until(lock, started + kGatherFor, [&] { return ending_ || hurry_; });
  }
}

// The caller holds the lock.
void Journal::throw_if_failed() {
  if (sync_errno_ != 0)
    fail_errno(sync_errno_, "journal: cannot write '", path_, "' to the disk");
}

uint64_t Journal::on_disk() {
  const Lock lock(mutex_);
  throw_if_failed();
  return synced_;
}

void Journal::take_notice() {
  uint64_t count = 0;
  (void)!::read(notice_.get(), &count, sizeof(count));  // fails only when there is none
}

void Journal::sync() {
  write();
  hurry();
  UniqueLock lock(mutex_);
  synced_more_.wait(lock, [&] { return synced_ == written_ || sync_errno_ != 0; });
  throw_if_failed();
}

}  // namespace muster
