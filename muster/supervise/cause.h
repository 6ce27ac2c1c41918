// Which of several failures that came within one moment is the cause of the others. The order of
// death does not tell: a process lets go of its connections a little before it is dead, and others
// may fail of that, and be dead, earlier. Values only; knows nothing of processes or ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "muster/base/lists.h"

namespace muster {

// A process that failed may have told why.
enum class Account {
  none,        // nothing
  own_error,   // an error of its own
  connection,  // that a connection broke, perhaps to the one that failed first
  lost_peer,   // that another process of the job was lost
};

// Whether a program may end by this signal of its own doing, also where another is the cause. What
// others send it, such as SIGKILL, says for itself that it is one.
bool is_crash(int signal);

struct End {
  int exit_code = 0;  // when signal == 0
  int signal = 0;
  Account account = Account::none;
};

struct Cause {
  size_t index = 0;
  // These may as well be the cause: the order of death tells them apart, or a signal from a code.
  Indices others{};
  bool is_known = true;  // false: all failed of the loss of another
};

// `ends` are failures in the order of death, at least one. Before all others comes what a signal
// has killed; then who told an error of its own; then, of those that told nothing, the odd one out,
// signals before exit codes.
Cause cause_among(const std::vector<End>& ends);

}  // namespace muster
