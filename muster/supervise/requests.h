// Requests (SIGUSR1, SIGUSR2) to processes, of which none is to end: a process that does not catch
// the signal yet, as one that is still starting, gets it once it does. For ProcessSet and
// ProcessPool.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <optional>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/supervise/descendants.h"

namespace muster {

inline bool is_request(int signal) {
  return is_one_of(signal, SIGUSR1, SIGUSR2);
}

class Requests {
 public:
  // For the processes that the next tell() names.
  void add(int signal);
  // Sends each request to those of `pids` that catch it by now. None that was not there when it was
  // told of first gets it.
  void tell(const Pids& pids);
  // Says that processes are still to get the signal, if any are.
  void say_if_kept(int signal) const;

  bool empty() const { return left_.empty(); }
  TimePoint next_look() const { return next_look_; }  // tell() is to be called then
  void forget(pid_t pid);                             // its number may be used again
  void forget_told();                                 // all processes have ended

 private:
  // By signal: those that have not got it yet. Nothing: those that tell() is called with next.
  std::map<int, std::optional<Pids>> left_;
  TimePoint next_look_;
  milliseconds look_every_{0};
};

}  // namespace muster
