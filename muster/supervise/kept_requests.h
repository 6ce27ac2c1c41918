// Requests (SIGUSR1, SIGUSR2) that come before this process catches them (SignalPipe) would end it.
// While one of these lives, they wait instead, and are there for the SignalPipe that is made
// meanwhile. For what starts processes, from its first moment: a machine is looked at, hosts are
// waited for, and a scheduler that asks knows nothing of that.
#pragma once

#include <signal.h>
#include <time.h>

#include "muster/base/no_copy.h"
#include "muster/base/signal_set.h"

namespace muster {

class KeptRequests : NoCopy {
 public:
  KeptRequests() { ::pthread_sigmask(SIG_BLOCK, &both(), &before_); }
  // Those that nobody has taken are for processes that have ended.
  ~KeptRequests() {
    const timespec at_once{};
    while (::sigtimedwait(&both(), nullptr, &at_once) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  static const sigset_t& both() {
    static const sigset_t signals = signal_set({SIGUSR1, SIGUSR2});
    return signals;
  }

  sigset_t before_;
};

}  // namespace muster
