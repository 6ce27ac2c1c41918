// A checkpoint appears under its name by a rename, when all of it is on the disk. Until then its
// writer holds a lock on the folder with the temporary name. The kernel lets go of a dead writer's
// lock, so a folder whose lock is free is a leftover.
#include "muster/checkpoint/files/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/checkpoint/files/durable_file.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp-";

// Returns the step in "step-12", or nothing for any other name ("step-012", "step-12.tmp-…").
std::optional<int64_t> step_in(const std::string& name) {
  if (!name.starts_with(kPrefix))
    return std::nullopt;
  const auto step = parse_int(std::string_view(name).substr(kPrefix.size()));
  if (!step || *step < 0 || cat(kPrefix, *step) != name)
    return std::nullopt;
  return step;
}

// Whether a writer made up this name: a checkpoint's, and a random end.
bool is_temporary(const std::string& name) {
  const auto at = name.find(kTemporary);
  return at != npos && step_in(name.substr(0, at)).has_value();
}

// The random numbers keep two writers of one step apart.
std::string temporary_path(const std::string& final_path) {
  std::random_device random;
  return cat(final_path, kTemporary, random(), "-", random());
}

// Returns nothing for a folder that does not exist. Throws: io if it cannot be read.
Strings names_in(const std::string& directory) {
  std::error_code error;
  Strings names = mapped(paths_in(directory, error), file_name);
  if (error && error != std::errc::no_such_file_or_directory)
    fail_errno(error.value(), "checkpoint: cannot read the folder '", directory, "'");
  return names;
}

// Warns of what cannot be removed: a leftover costs space, not the training.
void remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error)
    log_warning("checkpoint: cannot remove '", path, "': ", error.message());
}

// Opens a folder for its lock. Returns an invalid descriptor if it is gone, or is a link.
Fd open_folder(const std::string& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// What moves aside to be removed is no leftover of an interrupted save to others.
Fd locked_folder(const std::string& path) {
  Fd folder = open_folder(path);
  if (folder.valid())
    ::flock(folder.get(), LOCK_EX | LOCK_NB);
  return folder;
}

// Swaps two names at once. On a file system that cannot do it, the old one moves aside first.
void replace(const std::string& path, const std::string& final_path) {
  if (::renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0)
    return;
  const auto aside = temporary_path(final_path);
  if (::rename(final_path.c_str(), aside.c_str()) != 0 ||
      ::rename(path.c_str(), final_path.c_str()) != 0)
    fail_errno(errno, "checkpoint: cannot replace '", final_path, "'");
  remove_all(aside);
}

}  // namespace

// A path may end in a slash.
bool is_checkpoint_name(const std::string& path) {
  const fs::path whole(path);
  return step_in(file_name(whole.has_filename() ? whole : whole.parent_path())).has_value();
}

std::vector<StepFolder> list_checkpoints(const std::string& directory) {
  std::vector<StepFolder> found;
  for (const auto& name : names_in(directory))
    if (const auto step = step_in(name))
      found.push_back({*step, cat(directory, "/", name)});
  std::ranges::sort(found, std::greater(), &StepFolder::step);
  return found;
}

// A new folder is lost with the power unless its name is written too.
void make_directory(const std::string& directory) {
  std::error_code error;
  const bool created = fs::create_directories(directory, error);
  if (error)
    fail_errno(error.value(), "checkpoint: cannot make the folder '", directory, "'");
  if (created)
    sync_folder(fs::absolute(directory).lexically_normal().parent_path().string());
}

void remove_leftovers(const std::string& directory) {
  for (const auto& name : names_in(directory)) {
    if (!is_temporary(name))
      continue;
    const auto path = cat(directory, "/", name);
    const Fd folder = open_folder(path);
    // A living writer holds the lock; the kernel lets go of a dead one's.
    if (!folder.valid() || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0)
      continue;
    log_warning("checkpoint: removing '", path, "', which an interrupted save left");
    remove_all(path);
  }
}

// A folder is removed file by file, so it first gets a name that is no checkpoint's.
void remove_checkpoint(const std::string& path) {
  const auto aside = temporary_path(path);
  const Fd lock = locked_folder(path);
  if (::rename(path.c_str(), aside.c_str()) != 0) {
    const auto why = std::error_code(errno, std::generic_category()).message();
    log_warning("checkpoint: cannot remove '", path, "': ", why);
    return;
  }
  remove_all(aside);
}

void check_space(const std::string& directory, uint64_t bytes) {
  struct statvfs info{};
  if (::statvfs(directory.c_str(), &info) != 0)
    fail_errno(errno, "checkpoint: cannot ask for the space in '", directory, "'");
  const uint64_t free = info.f_bavail * info.f_frsize;
  if (free >= bytes)
    return;
  const Strings texts = format_compared_bytes({bytes, free});
  throw unavailable("checkpoint: expected ",
                    texts[0],
                    " free in '",
                    directory,
                    "', got ",
                    texts[1],
                    "; free some, or keep fewer checkpoints");
}

// Another job may remove the new folder as a leftover before it is locked, so several tries are
// made.
Staging::Staging(const std::string& directory, int64_t step)
    : directory_(directory), final_path_(cat(directory, "/", kPrefix, step)) {
  for (int tries = 0; tries < 16; ++tries) {
    path_ = temporary_path(final_path_);
    if (::mkdir(path_.c_str(), 0755) != 0)
      fail_errno(errno, "checkpoint: cannot make '", path_, "'");
    lock_ = open_folder(path_);
    if (!lock_.valid())
      continue;
    // Another job may clean up between our making and our locking: then we make another. A file
    // system without locks fails in another way, and the folder is ours.
    const bool is_locked = ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0;
    const bool is_taken = !is_locked && errno == EWOULDBLOCK;
    if (!is_taken && is_at(lock_, path_))
      return;
  }
  throw Error(ErrorCode::io,
              "checkpoint: expected the folder that a save makes in '",
              directory,
              "' to stay, got it removed each time; see whether another program cleans up there");
}

Staging::~Staging() {
  if (!published_)
    remove_all(path_);
}

// The folder that had the name before is removed last, when the new one has the name for good.
std::string Staging::publish() {
  sync_folder(path_);
  const bool exists = fs::exists(fs::symlink_status(final_path_));
  const Fd old = exists ? locked_folder(final_path_) : Fd();
  if (exists) {
    replace(path_, final_path_);
  } else if (::rename(path_.c_str(), final_path_.c_str()) != 0) {
    fail_errno(errno, "checkpoint: cannot rename '", path_, "' to '", final_path_, "'");
  }
  published_ = true;
  sync_folder(directory_);
  if (exists)
    remove_all(path_);  // what had the name before
  return final_path_;
}

}  // namespace muster
