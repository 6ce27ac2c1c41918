// Runs tasks on this machine for a run on another: the other end of remote_host.h, behind `muster
// tasks --serve`. It does what it is told and keeps no books. Whatever becomes of the connection,
// nothing that it started outlives it.
#pragma once

#include "muster/base/fd.h"
#include "muster/device/inventory.h"
#include "muster/tasks/hosts/remote_message.h"

namespace muster {

// This machine, as far as the question asks.
Inventory probe_for(const RemoteHello& hello);

// Serves over the two descriptors until the run ends. The exit code. Blocking: until every task has
// ended.
int serve_tasks(Fd in, Fd out);

// Serves over standard input and output. Whatever else is printed goes where errors go. Throws: io.
int serve_tasks_of_another();

}  // namespace muster
