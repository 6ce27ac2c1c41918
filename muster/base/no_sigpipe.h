// While it lives, a write of the calling thread to a closed connection fails with EPIPE and does
// not end the process by SIGPIPE: for libraries that write to sockets without MSG_NOSIGNAL. The
// process's own answer to SIGPIPE stays as it is (`program | head`). A thread that is made
// meanwhile is as protected, for good.
#pragma once

#include <signal.h>

#include <ctime>

#include "muster/base/no_copy.h"
#include "muster/base/signal_set.h"

namespace muster {

class NoSigpipe : NoCopy {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_signal(), &before_);
  }
  ~NoSigpipe() {
    const timespec at_once{};
    if (!was_pending_)
      ::sigtimedwait(&pipe_signal(), nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  static const sigset_t& pipe_signal() {
    static const sigset_t set = signal_set({SIGPIPE});
    return set;
  }

  sigset_t before_;
  bool was_pending_;
};

}  // namespace muster
