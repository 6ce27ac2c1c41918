// How it works: each folder on the way is opened below the one above it and without following links
// (openat, O_NOFOLLOW), and its owner is read from what was opened, so that nobody can put another
// in its place between the look and the use.
#include "muster/base/folder_owner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

// Whoever owns the folder above could replace this one anyway.
bool is_trusted(uid_t owner, const struct stat& above) {
  return owner == ::geteuid() || owner == 0 || owner == above.st_uid;
}

Error owned_by_another(const std::string& path, uid_t owner) {
  return failed_precondition("expected a folder or file of this user (",
                             ::geteuid(),
                             "), got '",
                             printable(path),
                             "' of user ",
                             owner,
                             "; move to a folder of your own, or name one with --run-dir");
}

Error in_the_way(const char* expected, const std::string& path) {
  return failed_precondition("run folder: expected a folder",
                             expected,
                             " '",
                             printable(path),
                             "'; remove it, or name another place with --run-dir or --log-dir");
}

Error is_a_link(const std::string& path) {
  return in_the_way(" or file that is no link, got", path);
}

bool is_link(const Fd& above, const std::string& name) {
  struct stat info{};
  return ::fstatat(above.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISLNK(info.st_mode);
}

// A link and what it points to must both have a trusted owner. A folder that is not there passes.
void check_one(const fs::path& folder, const fs::path& above) {
  struct stat info_above{};
  struct stat info{};
  if (::stat(above.c_str(), &info_above) != 0)
    return;
  for (const auto look : {::lstat, ::stat}) {
    if (look(folder.c_str(), &info) != 0)
      return;
    if (!is_trusted(info.st_uid, info_above))
      throw owned_by_another(folder, info.st_uid);
  }
}

struct stat stat_of(const Fd& file, const std::string& path) {
  struct stat info{};
  if (::fstat(file.get(), &info) != 0)
    fail_errno(errno, "cannot look at '", path, "'");
  return info;
}

// Makes the folder `name` below `above` where it is not there yet. `path` is its whole name, for
// messages.
Fd open_next_folder(const Fd& above, const std::string& name, const std::string& path) {
  if (::mkdirat(above.get(), name.c_str(), 0777) != 0 && errno != EEXIST)
    fail_errno(errno, "cannot create '", path, "'");
  Fd folder(::openat(above.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const int error = folder.valid() ? 0 : errno;
  if (error == ELOOP || error == ENOTDIR)
    throw is_link(above, name) ? is_a_link(path) : in_the_way(", got the file", path);
  if (error != 0)
    fail_errno(error, "cannot open '", path, "'");
  const uid_t owner = stat_of(folder, path).st_uid;
  if (!is_trusted(owner, stat_of(above, path)))
    throw owned_by_another(path, owner);
  return folder;
}

}  // namespace

std::string octal_mode(mode_t mode) {
  std::string digits = "0";
  for (const unsigned shift : {6U, 3U, 0U})
    digits += cat((mode >> shift) & 7U);
  return digits;
}

void check_folder_owner(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::absolute(folder, error).lexically_normal();
  const fs::path here = fs::current_path(error);
  const fs::path from_here = path.lexically_relative(here);
  const fs::path first = from_here.empty() ? fs::path("..") : *from_here.begin();
  const bool is_below_here = first != ".." && first != ".";
  if (!is_below_here)
    return check_one(path, path.parent_path());
  fs::path above = here;
  for (const fs::path& name : from_here) {
    check_one(above / name, above);
    above /= name;
  }
}

// The folder `top` is the user's own choice; only what lies below it may have been made by others.
Fd make_folder_below(const std::string& top, const std::string& below) {
  std::error_code error;
  fs::create_directories(top, error);
  if (error)
    fail_errno(error.value(), "cannot create '", top, "'");
  Fd folder = open_path(top, O_RDONLY | O_DIRECTORY);
  std::string path = top;
  for (const auto& name : split(below, '/')) {
    path += "/" + name;
    folder = open_next_folder(folder, name, path);
  }
  return folder;
}

// A link is not followed, and the other end of a pipe is not waited for.
Fd create_log(int folder, const std::string& path, int flags) {
  constexpr int kCarefully = O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK;
  const std::string name = folder == AT_FDCWD ? path : path.substr(path.rfind('/') + 1);
  Fd file(::openat(folder, name.c_str(), flags | kCarefully, 0644));
  if (!file.valid() && errno == ELOOP)
    throw is_a_link(path);
  if (!file.valid())
    fail_errno(errno, "cannot create log '", path, "'");
  if (!S_ISREG(stat_of(file, path).st_mode))
    throw failed_precondition(
        "expected a file at '", printable(path), "', got something else; remove it");
  if (::ftruncate(file.get(), 0) != 0)
    fail_errno(errno, "cannot empty log '", path, "'");
  ::fcntl(file.get(), F_SETFL, flags);
  return file;
}

}  // namespace muster
