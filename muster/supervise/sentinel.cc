// How it works: the sentinel is a fork of the launcher that reads one end of a pipe. A byte tells
// it to go; the end of file tells it that the launcher is dead, and then it kills the process
// groups in the memory that both share, and looks through /proc for processes with the job's marks.
// The launcher may have threads, so nothing in the child allocates or takes a lock.
#include "muster/supervise/sentinel.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"

namespace muster {

// Beyond this many, a group's processes are found by their marks alone.
constexpr size_t kMostGroups = 8191;

struct Sentinel::Groups {
  std::atomic<size_t> count;
  pid_t ids[kMostGroups];
};
static_assert(std::atomic<size_t>::is_always_lock_free, "the child shares no lock");

namespace {

// All functions from here to stand_guard run in the child: no allocation, no locks, nothing of the
// C++ runtime. The parent has made the marks before.

constexpr int kMostPasses = 200;
constexpr timespec kBetweenPasses = {.tv_sec = 0, .tv_nsec = 5'000'000};
constexpr size_t kMostMarks = 4;
constexpr char kName[] = "muster-sentinel";

// Looks for whole entries in an environment that comes byte by byte.
class MarkFinder {
 public:
  explicit MarkFinder(const Strings& marks)
      : marks_(marks), count_(std::min(marks.size(), kMostMarks)) {}

  void take(char c) {
    for (size_t i = 0; i < count_; ++i) {
      const auto& mark = marks_[i];
      if (c == '\0') {
        found_[i] |= matched_[i] == mark.size();
        matched_[i] = 0;
      } else if (matched_[i] < mark.size() && mark[matched_[i]] == c) {
        ++matched_[i];
      } else {
        matched_[i] = kOtherEntry;
      }
    }
  }
  bool found_all() const { return std::find(found_, found_ + count_, false) == found_ + count_; }

 private:
  static constexpr size_t kOtherEntry = SIZE_MAX;
  const Strings& marks_;
  size_t count_;
  size_t matched_[kMostMarks] = {};  // how much of each mark the entry has shown
  bool found_[kMostMarks] = {};
};

// Opens /proc/<pid>/<name>.
int open_of(int proc, const char* pid, const char* name) {
  char path[64] = {};
  char* end = path;
  for (const char* part : {pid, "/", name}) {
    for (; *part != '\0' && end < path + sizeof(path) - 1; ++part)
      *end++ = *part;
  }
  return ::openat(proc, path, O_RDONLY | O_CLOEXEC);
}

// Whether all marks are in the process's environment. One that may not be read has none.
bool has_marks(int proc, const char* pid, const Strings& marks) {
  const int file = open_of(proc, pid, "environ");
  if (file < 0)
    return false;
  MarkFinder finder(marks);
  char bytes[4096];
  for (ssize_t n = 0; (n = ::read(file, bytes, sizeof(bytes))) > 0;) {
    for (ssize_t i = 0; i < n; ++i)
      finder.take(bytes[i]);
  }
  ::close(file);
  return finder.found_all();
}

// A launcher that was a rank of this job has a sentinel of its own, which has its own work to do.
bool is_sentinel(int proc, const char* pid) {
  const int file = open_of(proc, pid, "comm");
  char name[sizeof(kName)] = {};
  const ssize_t n = file < 0 ? 0 : ::read(file, name, sizeof(name) - 1);
  if (file >= 0)
    ::close(file);
  return n > 0 && std::equal(kName, kName + sizeof(kName) - 1, name);
}

// getdents64 writes entries of this form. readdir would allocate.
struct Entry {
  uint64_t inode;
  int64_t next;
  unsigned short size;
  unsigned char type;
  char name[1];
};

// 0 for a name of /proc that is no number.
pid_t pid_of(const char* name) {
  pid_t pid = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9')
      return 0;
    pid = 10 * pid + (*name - '0');
  }
  return pid;
}

// Sends SIGKILL to all processes with the marks, and returns their number.
int kill_marked(int proc, const Strings& marks) {
  int killed = 0;
  alignas(Entry) char entries[4096];
  ::lseek(proc, 0, SEEK_SET);
  for (long n = 0; (n = ::syscall(SYS_getdents64, proc, entries, sizeof(entries))) > 0;) {
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const Entry*>(entries + at);
      at += entry->size;
      const pid_t pid = pid_of(entry->name);
      if (pid <= 0 || pid == ::getpid() || !has_marks(proc, entry->name, marks))
        continue;
      if (!is_sentinel(proc, entry->name) && ::kill(pid, SIGKILL) == 0)
        ++killed;
    }
  }
  return killed;
}

void close_all_but_standard_input() {
  if (::close_range(1, ~0U, 0) == 0)
    return;
  for (int fd = 1; fd < 65'536; ++fd)
    ::close(fd);  // a kernel before 5.9
}

// Blocking: until a byte comes (false) or the end of file (true).
bool launcher_has_died(int pipe) {
  char word = 0;
  ssize_t n = 0;
  do {
    n = ::read(pipe, &word, 1);
  } while (n < 0 && errno == EINTR);
  return n == 0;
}

// Waits for the launcher's death, and then sends SIGKILL to all that is left. It looks again until
// nothing is found, as processes may be born meanwhile.
void stand_guard(int pipe,
                 const pid_t* groups,
                 const std::atomic<size_t>& num_groups,
                 const Strings& marks) {
  ::setsid();
  ::prctl(PR_SET_NAME, kName);
  if (::chdir("/") != 0)
    return;
  if (::dup2(pipe, STDIN_FILENO) != STDIN_FILENO)
    return;
  close_all_but_standard_input();
  if (!launcher_has_died(STDIN_FILENO))
    return;
  for (size_t i = 0; i < num_groups; ++i)
    ::kill(-groups[i], SIGKILL);
  if (marks.empty())
    return;
  const int proc = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int pass = 0; proc >= 0 && pass < kMostPasses; ++pass) {
    if (kill_marked(proc, marks) == 0 && pass > 0)
      return;
    ::nanosleep(&kBetweenPasses, nullptr);
  }
}

}  // namespace

Sentinel::Sentinel(const Strings& marks) {
  Pipe pipe = open_pipe();
  pipe_ = std::move(pipe.write_end);
  void* const shared =
      ::mmap(nullptr, sizeof(Groups), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED)
    fail_errno("cannot map memory", errno);
  groups_ = new (shared) Groups;
  groups_->count = 0;
  {
    // Every signal stays blocked in the child: only the pipe and SIGKILL end it.
    const BlockedSignals blocked;
    pid_ = ::_Fork();
    if (pid_ == 0) {
      stand_guard(pipe.read_end.get(), groups_->ids, groups_->count, marks);
      ::_exit(0);
    }
  }
  if (pid_ > 0)
    return;
  const int why = errno;
  ::munmap(shared, sizeof(Groups));
  fail_errno("cannot make a process", why);
}

Sentinel::~Sentinel() {
  (void)!::write(pipe_.get(), "d", 1);  // fails only when it is gone already
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::munmap(groups_, sizeof(Groups));
}

void Sentinel::guard(pid_t group) {
  const size_t count = groups_->count;
  if (count == kMostGroups)
    return;
  groups_->ids[count] = group;
  groups_->count = count + 1;
}

// The last group takes the place of the released one, and is there twice for a moment. If this
// process is killed in between, that does no harm.
void Sentinel::release(pid_t group) {
  const size_t count = groups_->count;
  pid_t* const end = groups_->ids + count;
  pid_t* const found = std::find(groups_->ids, end, group);
  if (found == end)
    return;
  *found = end[-1];
  groups_->count = count - 1;
}

void Sentinel::forget_groups() {
  groups_->count = 0;
}

}  // namespace muster
