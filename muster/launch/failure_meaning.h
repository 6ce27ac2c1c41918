// What well-known failures mean, in plain words and with the next step, found in what a rank left
// behind. For the failure card. To add one: a line in the table of failure_meaning.cc.
#pragma once

#include <string>

#include "muster/launch/worker_exit.h"

namespace muster {

// Of the rank's message, stack and last lines; empty when nothing in them is known.
std::string failure_meaning(const WorkerExit& exit);

// What the words of its message and last lines tell of why it failed.
Account account_by_words(const WorkerExit& exit);

}  // namespace muster
