// A plain file is written aside and renamed, so that a reader never sees half of it. What is no
// plain file cannot be replaced by one: it is opened and written to.
#include "muster/base/named_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/usage.h"

namespace muster {

namespace {

// Whether the path names an open descriptor, as /dev/stdout does. Others write to its file too.
bool is_of_descriptor(const std::string& path) {
  constexpr std::array kFolders = {"/dev/fd/", "/proc/"};
  return path == "/dev/stdout" || path == "/dev/stderr" ||
         any_of(kFolders, [&](const char* folder) { return path.starts_with(folder); });
}

// A device or a pipe that were replaced by a file would be gone for everybody.
bool is_written_in_place(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0 || S_ISDIR(status.st_mode))
    return false;
  return !S_ISREG(status.st_mode) || is_of_descriptor(path);
}

}  // namespace

std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel's
  std::filesystem::path found = path;
  std::error_code none;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(found, none); ++i)
    found = found.parent_path() / std::filesystem::read_symlink(found, none);
  return found.string();
}

void write_named_file(const std::string& path, const std::string& bytes) {
  if (!is_written_in_place(path))
    return write_file(behind_links(path), bytes);
  write_all(open_path(path, O_WRONLY | O_APPEND | O_NOCTTY).get(), bytes, path);
}

namespace {

// Returns 0, or the errno that says why the file could not be written. It is made anew beside the
// old one and renamed, so that must be possible.
int why_not_writable(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode))
    return EISDIR;
  if (is_written_in_place(path))
    return ::access(path.c_str(), W_OK) == 0 ? 0 : errno;
  const auto aside = name_aside(behind_links(path));
  const Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid())
    return errno;
  ::unlink(aside.c_str());
  return 0;
}

}  // namespace

void refuse_named(const char* flag,
                  const char* expected,
                  const std::string& path,
                  const std::string& why) {
  fail_usage(
      flag, ": expected ", expected, ", got '", printable(path), "': ", why, "; give another");
}

void check_named_file(const char* flag, const std::string& path) {
  if (const int problem = why_not_writable(path); problem != 0)
    refuse_named(flag, kWritableFile, path, std::strerror(problem));
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code none;
  if (is_written_in_place(one))
    return false;
  if (std::filesystem::equivalent(one, other, none))
    return true;
  const auto whole = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(behind_links(path), none);
  };
  return whole(one) == whole(other);
}

void check_not_read(const char* flag, const std::string& path, const std::vector<ReadFile>& read) {
  const auto is_that = [&](const ReadFile& file) {
    return !file.path.empty() && is_same_file(path, file.path);
  };
  if (const ReadFile* const found = element_where(read, is_that))
    refuse_named(flag, kWritableFile, path, found->why);
}

}  // namespace muster
