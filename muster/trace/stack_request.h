// A rank's part in showing where a late one is: another rank of this host asks by a signal, and the
// handler writes its stack beside its activity file. Called by muster::run; Python's module has
// faulthandler do it.
#pragma once

#include <string>

#include "muster/trace/activity.h"

namespace muster {

// The signal that asks, on every machine the same; it ends a process that has no handler for it.
int stack_signal();

// From now on this process answers, unless the program has a handler for that signal already. The
// handler calls nothing that allocates or locks. A blocking call of the interrupted thread goes on,
// but for those that no signal lets go on (poll, sleep).
void answer_stack_requests(Activity& activity);

// From now on the answers go where they are looked for beside this activity file.
void answer_stack_requests_at(const std::string& activity_path);

// Where the answers of the rank with this activity file are.
std::string stack_path(const std::string& activity_path);

}  // namespace muster
