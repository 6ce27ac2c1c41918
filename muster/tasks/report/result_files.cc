#include "muster/tasks/report/result_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/patient_write.h"
#include "muster/base/strings.h"
#include "muster/base/usage.h"
#include "muster/tasks/report/results.h"
#include "muster/tasks/report/timeline.h"

// A file is replaced by a whole new one, so that a reader never sees half of it. Devices and pipes
// cannot be replaced, and are written as they are.

namespace muster {

namespace {

bool is_device_or_pipe(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

void write_result_file(const std::string& path, const std::string& text) {
  if (!is_device_or_pipe(path))
    return write_file(path, text);
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid())
    fail_errno(cat("cannot open '", path, "'"), errno);
  write_all(fd.get(), text, path);
}

// Returns 0, or the errno that says why the file could not be written. A file is made anew beside
// it and renamed, so that must be possible.
int why_not_writable(const std::string& path) {
  if (std::filesystem::is_directory(path))
    return EISDIR;
  if (is_device_or_pipe(path))
    return ::access(path.c_str(), W_OK) == 0 ? 0 : errno;
  const std::string aside = name_aside(path);
  const Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid())
    return errno;
  ::unlink(aside.c_str());
  return 0;
}

}  // namespace

// A run of hours is not to end with a file that cannot be written.
void check_result_files(const ResultFiles& files) {
  for (const auto& [flag, path] :
       {std::pair("--csv", files.csv), std::pair("--html", files.html)}) {
    const int problem = path.empty() ? 0 : why_not_writable(path);
    if (problem == 0)
      continue;
    fail_usage(cat(flag,
                   ": expected a file that can be written, got '",
                   printable(path),
                   "': ",
                   std::strerror(problem),
                   "; give another"));
  }
}

void write_result_files(const ResultFiles& files,
                        const std::vector<Task>& tasks,
                        const std::vector<TaskResult>& results,
                        const Inventory& inventory,
                        const std::string& title) {
  if (!files.csv.empty())
    write_result_file(files.csv, results_csv(tasks, results));
  if (!files.html.empty())
    write_result_file(files.html, timeline_html(tasks, results, inventory, title));
}

}  // namespace muster
