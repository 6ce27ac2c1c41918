// What a process is and does, from /proc/PID/stat.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "muster/base/strings.h"

namespace muster {

struct ProcessStatus {
  std::string command;  // "python3"
  char state = '?';     // R, S, D, Z, …; '?' when there is no such process
  pid_t parent = 0;
  // Its end has begun: it lets go of what it has open, and will be a zombie.
  bool is_exiting = false;
  // The fields of /proc/PID/stat from the state on, which is field 3 of proc_pid_stat(5); empty: no
  // such process.
  Strings fields;

  int64_t number(size_t field) const;  // of `fields`; 0 when there is none
  // When the process began, in the kernel's ticks, which tells it from another that gets its
  // number; 0 when there is none.
  int64_t start_ticks() const;
};

ProcessStatus process_status(pid_t pid);

uint64_t process_start_ticks(pid_t pid);

// Whether it has a handler of the signal.
bool catches_signal(pid_t pid, int signal);

// Whether it takes the signal without a handler: all its threads block it but one that waits for it
// (sigwait), or it has a descriptor for it (signalfd). That all of one block it says nothing: the
// start of a process does so for a moment. A process whose only thread waits is not recognised.
bool awaits_signal(pid_t pid, int signal);

}  // namespace muster
