// A small process that outlives a launcher killed by SIGKILL just long enough to take its job
// along. The kernel ends the ranks themselves (PR_SET_PDEATHSIG); what they have started, such as
// the program behind a shell wrapper, only somebody who is left can end. Made and kept by
// ProcessSet; knows nothing of ranks.
#pragma once

#include <sys/types.h>

#include <string>

#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"

namespace muster {

class Sentinel : NoCopy {
 public:
  // Forks without exec, since a program that starts itself would run its main again: the child has
  // nothing of ours open, a session of its own, and makes only async-signal-safe calls. `marks` are
  // entries of the environment, as "NAME=value", that together tell this job's processes from all
  // others; none: only the groups are ended. Throws: io.
  explicit Sentinel(const Strings& marks);
  // Ends it and nothing else. Blocking: until it has ended, which is at once.
  ~Sentinel();

  pid_t pid() const { return pid_; }

  // Adds a process group that is to end with this process.
  void guard(pid_t group);

  // Forgets one group, whose number may soon be somebody else's.
  void release(pid_t group);

  // Forgets all groups: their numbers may soon be somebody else's.
  void forget_groups();

 private:
  struct Groups;  // in memory that both share

  Groups* groups_ = nullptr;
  Fd pipe_;
  pid_t pid_ = -1;
};

}  // namespace muster
