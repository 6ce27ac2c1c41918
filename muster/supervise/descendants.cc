// How it works: everything is read from /proc, where any process may end between two reads. A
// process that has gone shows nothing, and that is never an error here. The lists of children are a
// matter of the kernel's configuration; without them every process is asked for its parent.
#include "muster/supervise/descendants.h"

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"

namespace muster {

namespace {

// The numbers of a list; words that are none, such as an empty last one, are left out.
template <class Number>
std::set<Number> numbers_in(std::string_view text, char separator) {
  std::set<Number> numbers;
  for (const auto& word : split(text, separator)) {
    if (const auto number = parse_int(word))
      numbers.insert(static_cast<Number>(*number));
  }
  return numbers;
}

// The line of its status is "Uid:	0	0	0	0".
std::set<uid_t> uids_of(pid_t pid) {
  const auto status = try_read_file(cat("/proc/", pid, "/status")).value_or("");
  for (const auto& line : split(status, '\n')) {
    if (line.starts_with("Uid:"))
      return numbers_in<uid_t>(line.substr(4), '\t');
  }
  return {};
}

// Devices have no id: all processes may have them open, so that they tell nothing.
std::optional<FileId> id_of(const struct stat& info) {
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))
    return std::nullopt;
  return FileId{info.st_dev, info.st_ino};
}

}  // namespace

Pids pids_in(std::string_view text) {
  return numbers_in<pid_t>(text, ' ');
}

// A process that starts children in several threads has a list for each of them.
Pids own_children() {
  Pids children;
  bool has_lists = false;
  for (const int thread : numbers_in_folder("/proc/self/task")) {
    const auto list = try_read_file(cat("/proc/self/task/", thread, "/children"));
    if (!list)
      continue;
    has_lists = true;
    children.merge(pids_in(*list));
  }
  if (has_lists)
    return children;
  for (const pid_t pid : numbers_in_folder("/proc")) {
    if (process_status(pid).parent == ::getpid())
      children.insert(pid);
  }
  return children;
}

// The tree is put together from every process's parent, as /proc has no list of descendants.
std::set<uid_t> uids_of_descendants() {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : numbers_in_folder("/proc"))
    children.emplace(process_status(pid).parent, pid);
  std::set<uid_t> uids;
  std::vector<pid_t> pending = {::getpid()};
  while (!pending.empty()) {
    const auto [first, last] = children.equal_range(pending.back());
    pending.pop_back();
    for (auto child = first; child != last; ++child) {
      uids.merge(uids_of(child->second));
      pending.push_back(child->second);
    }
  }
  return uids;
}

std::optional<FileId> file_of(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0)
    return std::nullopt;
  return id_of(info);
}

// stat() follows the links of /proc/pid/fd to the files themselves.
FileIds open_files(pid_t pid) {
  FileIds files;
  const auto folder = cat("/proc/", pid, "/fd");
  for (const int fd : numbers_in_folder(folder)) {
    struct stat info{};
    if (::stat(cat(folder, "/", fd).c_str(), &info) != 0)
      continue;
    if (const auto file = id_of(info))
      files.insert(*file);
  }
  return files;
}

Strings environment_entries(pid_t pid) {
  const auto text = try_read_file(cat("/proc/", pid, "/environ"));
  return text ? split(*text, '\0') : Strings();
}

}  // namespace muster
