// Looking for processes in /proc: what children left behind, and what a process uses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/process_status.h"
#include "muster/base/strings.h"

namespace muster {

using Pids = std::set<pid_t>;

// The process ids in a text of /proc, which has blanks between them.
Pids pids_in(std::string_view text);

// The children of this process: those that it started and, when it is a subreaper, orphans that
// came to it.
Pids own_children();

// The users that this process's descendants run as, and may have opened what they have open as:
// real, effective, saved and of files.
std::set<uid_t> uids_of_descendants();

// A process, and no other that gets its number.
struct ProcessId {
  pid_t pid = 0;
  uint64_t started_ticks = 0;
};

// A file, a pipe or a socket, whatever its name.
using FileId = std::pair<dev_t, ino_t>;
using FileIds = std::set<FileId>;

// The file behind a descriptor of this process; nothing for terminals and other devices, which all
// processes may have open.
std::optional<FileId> file_of(int fd);

// The files that a process has open; none when it has ended, or may not be looked at: another
// user's, or one that has made itself not dumpable.
FileIds open_files(pid_t pid);

// The entries of the environment that the process was started with, as "NAME=value"; none when it
// has ended, or may not be looked at.
Strings environment_entries(pid_t pid);

}  // namespace muster
