// How it works: the folder is opened without following a link, and its owner and mode are read from
// what was opened. A shared lock keeps programs away that clear old files out of /tmp; they lock a
// folder for themselves before they remove it.
#include "muster/base/runtime_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/folder_owner.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

Error bad_folder(const std::string& path, const std::string& got) {
  return failed_precondition(
      "runtime folder: expected a folder that belongs to this user alone (mode 0700), got '",
      printable(path),
      "', ",
      got,
      "; remove or correct it, or set MUSTER_RUNTIME_DIR");
}

// A folder of this user was made by this user: in these places, nobody can give a folder away.
bool is_own_folder(const std::string& path) {
  struct stat info{};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

// Whether `path`, which is below `place`, is free, and this user may make it.
bool can_be_made(const std::string& place, const std::string& path) {
  struct stat info{};
  const bool is_free = ::lstat(path.c_str(), &info) != 0 && errno == ENOENT;
  return is_free && ::access(place.c_str(), W_OK | X_OK) == 0;
}

// Throws unless the folder is this user's, and nobody else may look into it.
void expect_private(const Fd& folder, const std::string& path) {
  struct stat info{};
  if (::fstat(folder.get(), &info) != 0)
    fail_errno(errno, "runtime folder: cannot look at '", path, "'");
  if (info.st_uid != ::geteuid())
    throw bad_folder(path, cat("which belongs to user ", info.st_uid));
  if ((info.st_mode & 077) != 0)
    throw bad_folder(path, cat("which has mode ", octal_mode(info.st_mode)));
}

// Returns an invalid descriptor when the folder is not there and not to be made.
Fd open_private_folder(const std::string& path, bool create) {
  if (create && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    fail_errno(errno, "runtime folder: cannot make the folder '", path, "'");
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid()) {
    if (errno == ENOENT && !create)
      return {};
    if (errno == ELOOP || errno == ENOTDIR)
      throw bad_folder(path, "which is a link or no folder");
    fail_errno(errno, "runtime folder: cannot open the folder '", path, "'");
  }
  expect_private(folder, path);
  return folder;
}

// Returns false while another has it for itself. A file system without such locks has nobody who
// asks for them.
bool try_share(const Fd& folder) {
  return ::flock(folder.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

}  // namespace

std::string choose_runtime_folder(const Strings& places) {
  const auto folder_in = [](const std::string& place) {
    return cat(place, "/muster-", ::geteuid());
  };
  for (const auto& place : places) {
    if (is_own_folder(folder_in(place)))
      return folder_in(place);
  }
  for (const auto& place : places) {
    if (can_be_made(place, folder_in(place)))
      return folder_in(place);
  }
  return folder_in(places.at(0));
}

std::string default_runtime_folder() {
  if (const auto told = get_env("MUSTER_RUNTIME_DIR"))
    return choose_runtime_folder({*told});
  return choose_runtime_folder({"/tmp", "/var/tmp", "/dev/shm"});
}

Fd open_runtime_folder(const std::string& path, bool create, milliseconds patience) {
  const Deadline deadline(patience);
  for (;;) {
    Fd folder = open_private_folder(path, create);
    if (!create)
      return folder;
    // Whoever had the folder to itself may have removed it.
    if (try_share(folder) && is_at(folder, path))
      return folder;
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  "runtime folder: expected to lock '",
                  printable(path),
                  "' beside others (flock), got no lock; see who has it (`lsof ",
                  printable(path),
                  "`)");
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace muster
