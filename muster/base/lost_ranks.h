// Which ranks of the job this process has found lost: they had ended, or had left what others were
// waiting for. Errors name them in words; the error file has their numbers from here.
#pragma once

#include "muster/base/lists.h"

namespace muster {

// By their numbers in the job. From any thread.
void note_lost_rank(int rank);

// In the order in which they were found.
Ints lost_ranks();

// For a rank's next attempt, whose ranks are others.
void forget_lost_ranks();

}  // namespace muster
