// Blocks every signal of the calling thread for a moment: while a new child shares our memory, or
// has our handlers, none of them must run in it; and a thread that is made meanwhile never runs the
// program's handlers.
#pragma once

#include <signal.h>

#include "muster/base/no_copy.h"

namespace muster {

class BlockedSignals : NoCopy {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace muster
