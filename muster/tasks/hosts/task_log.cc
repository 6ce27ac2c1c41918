// A task's logs lie in a folder of its name below the run's folder, one for each attempt. The name
// may be any text, so that it is first made one that a folder can have.
#include "muster/tasks/hosts/task_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/folder_owner.h"
#include "muster/base/seen_line.h"
#include "muster/tasks/hosts/last_json_line.h"

namespace muster {

namespace {

constexpr off_t kLogTail = off_t{64} << 10;
constexpr size_t kLongestFolderName = 200;

}  // namespace

std::string task_folder_of(const std::string& run_dir, const std::string& task, size_t place) {
  std::string name = task;
  std::ranges::replace(name, '/', '_');
  const bool is_folder_name = !name.empty() && !name.starts_with('.');
  // Names that would be the same folder, or none, are told apart by their place.
  if (name != task || !is_folder_name || name.size() > kLongestFolderName)
    name = cat(name.substr(0, kLongestFolderName), "~", place);
  if (name.starts_with('.'))
    name.insert(0, "_");
  return cat(run_dir, "/logs/", name);
}

Fd make_task_folder(const std::string& folder) {
  const std::filesystem::path path(folder);
  const std::filesystem::path run_dir = path.parent_path().parent_path();
  return make_folder_below(run_dir, path.lexically_relative(run_dir));
}

Fd open_task_log(const std::string& path) {
  const Fd folder = make_task_folder(path.substr(0, path.rfind('/')));
  return create_log(folder.get(), path, O_RDWR | O_APPEND);
}

Strings last_lines_of_log(int fd, int count) {
  Strings lines = split(trim(tail_of_file(fd, kLogTail)), '\n');
  if (lines.size() == 1 && lines[0].empty())
    return {};
  if (std::ssize(lines) > count)
    lines.erase(lines.begin(), lines.end() - count);
  for (std::string& line : lines)
    line = seen_line(line);
  return lines;
}

std::string result_in_log(int fd, const std::string& path) {
  // An empty log is quick to tell, and the folder may have many of them.
  struct stat info{};
  if (fd < 0 || ::fstat(fd, &info) != 0 || info.st_size == 0)
    return {};
  try {
    return last_json_line(path);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace muster
