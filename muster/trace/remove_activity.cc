// Removes what an earlier launch in the same run folder has left of its ranks' activity. How it
// works: a file goes if this host has written it and nobody has a lock on it; a folder goes when it
// is empty.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/strings.h"
#include "muster/trace/hosts_folder.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

bool is_of_this_host(const std::string& path) {
  try {
    return read_activity(path).host == activity_host_name();
  } catch (const Error&) {
    return false;  // it is somebody's, but no activity
  }
}

// The process that writes a file has a lock on it.
bool is_written_to(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return !fd.valid() || ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
}

// A stack that a rank was asked for lies beside the rank's file, and goes when that is gone.
void remove_stacks(const std::filesystem::path& folder) {
  for (const auto& path : paths_in(folder)) {
    auto of_rank = path;
    const bool is_stack = path.extension() == ".stack";
    if (is_stack && !path_exists(of_rank.replace_extension()))
      ::unlink(path.c_str());
  }
}

}  // namespace

void remove_earlier_activity(const std::string& run_dir) {
  for (const auto& folder : paths_in(std::filesystem::path(run_dir) / "activity")) {
    for (const auto& path : paths_in(folder)) {
      if (is_of_this_host(path) && !is_written_to(path))
        ::unlink(path.c_str());
    }
    remove_stacks(folder);
    ::rmdir(folder.c_str());  // fails where something is left
  }
}

// The other hosts' copies come at the end of a job, so those of an earlier launch are out of date.
void keep_copies_of_launch(const std::string& run_dir, const std::string& launch) {
  namespace fs = std::filesystem;
  if (!is_folder(hosts_folder(run_dir)) || launch_of_hosts_folder(run_dir) == launch)
    return;
  std::error_code error;
  for (const fs::path& folder : paths_in(hosts_folder(run_dir))) {
    const bool is_attempt = parse_int(file_name(folder)).has_value();
    if (is_attempt && is_folder(folder))
      fs::remove_all(folder, error);
  }
}

}  // namespace muster
