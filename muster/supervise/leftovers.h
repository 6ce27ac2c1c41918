// What ended children have left running: found among this process's children, asked to end by
// SIGTERM, then killed. For ProcessSet, which ends everything that is left, and ProcessPool, which
// ends what one child left.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/supervise/descendants.h"

namespace muster {

// No descriptor tells of the deaths of leftovers, so whoever waits for them looks again after this.
inline constexpr milliseconds kLookAtLeftovers{5};
// Their grace period, between SIGTERM and SIGKILL.
inline constexpr milliseconds kAskLeftovers{2'000};

// The children of this process, for who asks often: /proc's list stays open. All of them must be
// started by the main thread, to which orphans come too; asked in another thread it is
// own_children().
class ChildList {
 public:
  ChildList();
  Pids read() const;

 private:
  Fd file_;  // invalid where the kernel has no such list
};

// Ends leftovers: to be called again until there are none, as killing one may bring its own
// children here.
class LeftoverSweep {
 public:
  // `describe` is asked for a process's description while the process lives.
  LeftoverSweep();
  explicit LeftoverSweep(std::function<std::string(pid_t)> describe);

  // SIGTERM to each process that has not had one; a second could cut its saving short.
  void ask(const Pids& left);
  void kill(const Pids& left);

  // The process is asked at once, by another way.
  void note_asked(pid_t pid);
  bool has_signalled(pid_t pid) const { return asked_.contains(pid) || killed_.contains(pid); }

  // Notes that a process has ended, with waitpid's status: of SIGTERM, if it was asked and did.
  void note_end(pid_t pid, int status);

  // A description of each process that was killed, and of each that SIGTERM was enough for.
  const Strings& killed() const { return descriptions_; }
  const Strings& ended() const { return ended_; }

 private:
  std::function<std::string(pid_t)> describe_;
  std::map<pid_t, std::string> asked_;  // descriptions; empty: its end is known
  Pids killed_;
  Strings descriptions_;
  Strings ended_;
};

}  // namespace muster
