// Runs tasks on this machine for a run on another: the other end of remote_host.h, behind `muster tasks
// --serve`. It does what it is told and keeps no books. Whatever becomes of the connection, nothing that it
// started outlives it.
#pragma once

#include "muster/base/fd.h"

namespace muster {

// Serves over the two descriptors until the run ends. The exit code. Blocking: until every task has ended.
int serve_tasks(Fd in, Fd out);

}  // namespace muster
