// Looking for processes in /proc: what children left behind, and what a process is and uses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster {

// The process ids in a text of /proc, which has blanks between them.
std::set<pid_t> pids_in(std::string_view text);

// The children of this process: those that it started and, when it is a subreaper, orphans that
// came to it.
std::set<pid_t> own_children();

// The users that this process's descendants run as, and may have opened what they have open as:
// real, effective, saved and of files.
std::set<uid_t> uids_of_descendants();

struct ProcessStatus {
  std::string command;  // "python3"
  char state = '?';     // R, S, D, Z, …; '?' when there is no such process
  pid_t parent = 0;
  // Its end has begun: it lets go of what it has open, and will be a zombie.
  bool is_exiting = false;
  // The fields of /proc/pid/stat from the state on, which is field 3 of proc_pid_stat(5); empty: no
  // such process.
  std::vector<std::string> fields;

  int64_t number(size_t field) const;  // of `fields`; 0 when there is none
};

ProcessStatus process_status(pid_t pid);

// When the process began, in the kernel's ticks, which tells it from another that gets its number;
// 0 when there is none.
uint64_t process_start_ticks(pid_t pid);

// A process, and no other that gets its number.
struct ProcessId {
  pid_t pid = 0;
  uint64_t started_ticks = 0;
};

// A file, a pipe or a socket, whatever its name.
using FileId = std::pair<dev_t, ino_t>;

// The file behind a descriptor of this process; nothing for terminals and other devices, which all
// processes may have open.
std::optional<FileId> file_of(int fd);

// The files that a process has open; none when it has ended, or may not be looked at: another
// user's, or one that has made itself not dumpable.
std::set<FileId> open_files(pid_t pid);

// The entries of the environment that the process was started with, as "NAME=value"; none when it
// has ended, or may not be looked at.
std::vector<std::string> environment_entries(pid_t pid);

}  // namespace muster
