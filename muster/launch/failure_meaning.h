// The meaning of well-known failures, in plain words and with the next step, found in what a rank
// left behind. For the failure card. To add one: a line in the table of failure_meaning.cc.
#pragma once

#include <string>

#include "muster/launch/rank_exit.h"

namespace muster {

// The meaning of the rank's message, stack or last lines; empty when nothing in them is known.
std::string failure_meaning(const RankExit& exit);

// The class of a failure by the words of the rank's message and last lines.
Account account_by_words(const RankExit& exit);

}  // namespace muster
