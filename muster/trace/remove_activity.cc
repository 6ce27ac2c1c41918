// Removes what an earlier launch in the same run folder has left of its ranks' activity.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/hosts_folder.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

std::string own_host_name() {
  char name[sizeof(ActivityHeader::host)] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

bool is_of_this_host(const std::string& path) {
  try {
    return read_activity(path).host == own_host_name();
  } catch (const Error&) {
    return false;  // it is somebody's, but no activity
  }
}

// Its writer has a lock on it.
bool is_written_to(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return !fd.valid() || ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
}

// Those that a rank was asked for: beside its file, which is gone.
void remove_stacks(const std::filesystem::path& folder) {
  std::error_code gone;
  for (std::filesystem::directory_iterator file(folder, gone), end; !gone && file != end;
       file.increment(gone)) {
    auto of_rank = file->path();
    if (of_rank.extension() != ".stack")
      continue;
    std::error_code unknown;
    if (!std::filesystem::exists(of_rank.replace_extension(), unknown))
      ::unlink(file->path().c_str());
  }
}

}  // namespace

void remove_earlier_activity(const std::string& run_dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator folder(fs::path(run_dir) / "activity", error), end;
       !error && folder != end;
       folder.increment(error)) {
    std::error_code gone;
    for (fs::directory_iterator file(folder->path(), gone); !gone && file != end;
         file.increment(gone)) {
      const std::string path = file->path().string();
      if (is_of_this_host(path) && !is_written_to(path))
        ::unlink(path.c_str());
    }
    remove_stacks(folder->path());
    ::rmdir(folder->path().c_str());  // where nothing is left
  }
}

void keep_copies_of_launch(const std::string& run_dir, const std::string& launch) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(hosts_folder(run_dir), error))
    return;
  if (launch_of_hosts_folder(run_dir) == launch)
    return;
  for (fs::directory_iterator folder(hosts_folder(run_dir), error), end; !error && folder != end;
       folder.increment(error)) {
    std::error_code failed;
    if (parse_int(folder->path().filename().string()) && folder->is_directory(failed))
      fs::remove_all(folder->path(), failed);
  }
}

}  // namespace muster
