#include "muster/supervise/descendants.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Calls `visit` for every entry of a /proc folder that is a number.
template <class Visit>
void for_each_number(const char* folder, Visit visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder), ::closedir);
  if (!dir)
    return;
  while (const dirent* entry = ::readdir(dir.get())) {
    if (const auto number = parse_int(entry->d_name))
      visit(static_cast<pid_t>(*number));
  }
}

// /proc's list of one thread's children; nothing where the kernel was built without it.
std::optional<std::string> children_file(pid_t thread) {
  try {
    return read_file(cat("/proc/self/task/", thread, "/children"));
  } catch (const Error&) {
    return std::nullopt;  // the thread ended, or no such file
  }
}

// "Uid:	0	0	0	0" of its status.
void add_uids(pid_t pid, std::set<uid_t>& uids) {
  try {
    for (const std::string& line : split(read_file(cat("/proc/", pid, "/status")), '\n')) {
      if (!line.starts_with("Uid:"))
        continue;
      for (const std::string& word : split(line.substr(4), '\t')) {
        if (const auto uid = parse_int(word))
          uids.insert(static_cast<uid_t>(*uid));
      }
      return;
    }
  } catch (const Error&) {
    return;  // it has ended
  }
}

std::optional<FileId> id_of(const struct stat& info) {
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))
    return std::nullopt;
  return FileId{info.st_dev, info.st_ino};
}

}  // namespace

std::set<pid_t> own_children() {
  std::set<pid_t> children;
  bool listed = false;
  for_each_number("/proc/self/task", [&](pid_t thread) {
    const auto list = children_file(thread);
    listed |= list.has_value();
    for (const std::string& pid : split(list.value_or(""), ' ')) {
      if (const auto number = parse_int(pid))
        children.insert(static_cast<pid_t>(*number));
    }
  });
  if (listed)
    return children;
  const pid_t self = ::getpid();
  for_each_number("/proc", [&](pid_t pid) {
    if (process_status(pid).parent == self)
      children.insert(pid);
  });
  return children;
}

std::set<uid_t> uids_of_descendants() {
  std::multimap<pid_t, pid_t> children;
  for_each_number("/proc", [&](pid_t pid) { children.emplace(process_status(pid).parent, pid); });
  std::set<uid_t> uids;
  std::vector<pid_t> pending = {::getpid()};
  while (!pending.empty()) {
    const auto [first, last] = children.equal_range(pending.back());
    pending.pop_back();
    for (auto child = first; child != last; ++child) {
      add_uids(child->second, uids);
      pending.push_back(child->second);
    }
  }
  return uids;
}

int64_t ProcessStatus::number(size_t field) const {
  return field < fields.size() ? parse_int(fields[field]).value_or(0) : 0;
}

ProcessStatus process_status(pid_t pid) {
  ProcessStatus status;
  std::string text;
  try {
    text = read_file(cat("/proc/", pid, "/stat"));
  } catch (const Error&) {
    return status;
  }
  // "123 (name, which may hold anything) S 1 …"
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= text.size())
    return status;
  status.command = text.substr(open + 1, close - open - 1);
  status.state = text[close + 2];
  status.fields = split(std::string_view(text).substr(close + 2), ' ');
  status.parent = static_cast<pid_t>(status.number(1));
  constexpr size_t kFlagsField = 6;
  constexpr int64_t kExiting = 0x4;  // the kernel's PF_EXITING
  status.is_exiting = (status.number(kFlagsField) & kExiting) != 0;
  return status;
}

uint64_t process_start_ticks(pid_t pid) {
  constexpr size_t kStartField = 19;
  return static_cast<uint64_t>(process_status(pid).number(kStartField));
}

std::optional<FileId> file_of(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0)
    return std::nullopt;
  return id_of(info);
}

std::set<FileId> open_files(pid_t pid) {
  std::set<FileId> files;
  const std::string folder = cat("/proc/", pid, "/fd");
  for_each_number(folder.c_str(), [&](int fd) {
    struct stat info = {};
    if (::stat(cat(folder, "/", fd).c_str(), &info) != 0)
      return;
    if (const auto file = id_of(info))
      files.insert(*file);
  });
  return files;
}

std::vector<std::string> environment_entries(pid_t pid) {
  try {
    return split(read_file(cat("/proc/", pid, "/environ")), '\0');
  } catch (const Error&) {
    return {};
  }
}

}  // namespace muster
