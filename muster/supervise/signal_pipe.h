// Signals to this process as something to wait for: handlers write each one's number into a pipe
// that an event loop watches. Handlers, and not a signalfd with the signals blocked, because
// blocking counts for one thread only: in a program with others, the kernel would hand the signal
// to one of those. Used by ProcessSet; one at a time in a process.
#pragma once

#include <signal.h>

#include <optional>
#include <vector>

#include "muster/base/fd.h"
#include "muster/base/lists.h"
#include "muster/base/no_copy.h"

namespace muster {

class SignalPipe : NoCopy {
 public:
  // Catches the signals from now on, whichever thread they come to: `stops` ask this process to
  // stop. SIGHUP is taken out of these if this process ignores it, as nohup has it. Throws: io.
  SignalPipe(Ints& stops, const Ints& others);
  ~SignalPipe();  // what was done about them before is done again

  // Readable when a signal has come.
  int fd() const { return pipe_.read_end.get(); }

  // The next signal that has come; nothing when there is none.
  std::optional<int> take();

 private:
  struct Before {
    int signal;
    struct sigaction action;
  };

  Pipe pipe_;
  std::vector<Before> before_;
  sigset_t old_mask_;
};

// The signal that last asked this process to stop, taken out of the pipe or not; 0: none has, or
// nobody catches them. For work that keeps the loop waiting, in any thread.
int caught_stop_signal();

}  // namespace muster
