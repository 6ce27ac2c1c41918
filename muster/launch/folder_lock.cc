// The lock is a lock of the kernel on a file in the folder, so it ends with the processes that hold
// it. The file's text says which start of a job holds it: the launchers of other hosts, which
// belong to the same start, then share the lock instead of waiting for it.
#include "muster/launch/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// The agents of a launcher that was killed take some 2 s to end their ranks, and have it until
// then.
constexpr std::chrono::seconds kFolderPatience{5};

// The file's text: "<the start's id> <pid> <host>".
std::string lock_note(const std::string& start) {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return cat(start, " ", ::getpid(), " ", host, "\n");
}

// The three words of lock_note; empty words where the file has fewer.
std::vector<std::string> read_lock_note(const Fd& file) {
  char text[512];
  const ssize_t size = ::pread(file.get(), text, sizeof(text), 0);
  const size_t length = std::max<ssize_t>(size, 0);
  std::vector<std::string> words = split(trim({text, length}), ' ');
  words.resize(3);
  return words;
}

// Sets a lock of this open file, so that two launchers in one process are two holders. Returns 0,
// or an errno.
int set_lock(const Fd& file, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return ::fcntl(file.get(), F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

// Whether the path still names this file: a folder that held nothing is removed with its lock.
bool is_still_there(const Fd& file, const std::string& path) {
  struct stat ours = {};
  struct stat there = {};
  if (::fstat(file.get(), &ours) != 0 || ::stat(path.c_str(), &there) != 0)
    return false;
  return ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder, const std::string& start)
    : path_(folder + "/" + kFolderLock) {
  const Deadline deadline(kFolderPatience);
  for (;;) {
    std::error_code is_told_by_open;
    std::filesystem::create_directories(folder, is_told_by_open);
    file_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file_.valid() && errno != ENOENT) {
      log(LogLevel::debug, cat("no lock on ", printable(folder), "; going on without"));
      return;
    }
    if (file_.valid() && try_lock(start))
      return;
    if (deadline.passed())
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::vector<std::string> note =
      file_.valid() ? read_lock_note(file_) : std::vector<std::string>(3);
  const std::string holder =
      note[1].empty() ? "" : cat(" (process ", note[1], " on ", note[2], ")");
  throw Error(
      ErrorCode::failed_precondition,
      printable(cat("the folder '",
                    folder,
                    "': expected no job that still writes there, got one",
                    holder,
                    "; wait until it has ended (`muster ps`), or give this one another folder")));
}

// False where another start holds it, or where the file has been removed meanwhile.
bool FolderLock::try_lock(const std::string& start) {
  const int alone = set_lock(file_, F_WRLCK);
  const bool held = is_one_of(alone, EAGAIN, EACCES);
  if (alone != 0 && !held)
    log(LogLevel::debug, cat("no lock on ", printable(path_), "; going on without"));
  is_new_start_ = read_lock_note(file_)[0] != start;
  if (held)
    return !is_new_start_ && set_lock(file_, F_RDLCK) == 0 && is_still_there(file_, path_);
  if (!is_still_there(file_, path_))
    return false;
  const std::string note = lock_note(start);
  const bool noted = ::ftruncate(file_.get(), 0) == 0 &&
                     ::pwrite(file_.get(), note.data(), note.size(), 0) == std::ssize(note);
  if (!noted)
    log(LogLevel::debug, cat("no note in ", printable(path_)));
  return true;
}

void FolderLock::share() {
  if (file_.valid())
    set_lock(file_, F_RDLCK);
}

void FolderLock::remove_file() const {
  if (file_.valid())
    ::unlink(path_.c_str());
}

}  // namespace muster
