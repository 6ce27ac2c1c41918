// Which rank's failure is the cause of the others, and what is not known about it. Values only.
#pragma once

#include <string>

#include "muster/base/lists.h"
#include "muster/launch/rank_exit.h"
#include "muster/supervise/cause.h"

namespace muster {

// "rank 3" or "ranks 0, 2".
std::string rank_list(const Ints& ranks);

// The class of what the rank has told of why it failed, by facts, its message and its last lines.
Account account_of(const RankExit& exit);

// Whether it failed of the loss of another, as muster's, Gloo's, NCCL's and c10d's errors say it.
// Such a rank has not failed first.
bool lost_a_peer(const RankExit& exit);

// `exits` in order of death, or as other hosts report them: the cause comes before the failures
// that came together with it, until the others were ended. `goes_on`: a failure ends nobody, so
// that only what comes in one moment with the first belongs to it.
void put_cause_first(RankExits& exits, bool goes_on = false);

// Where the first failure is but the loss of another rank, and others were replaced soon before:
// those are the cause. They come first then, in place of the processes that followed them.
void put_replaced_first(RankExits& exits, const RankExits& replaced);

// The first in order that failed by itself, and not of the loss of another where there is one;
// nothing when none did.
const RankExit* first_failure(const RankExits& exits);

// The rank that left while the others waited, if `first` failed of no more than the loss of a rank;
// nullptr: none did.
const RankExit* left_early(const RankExits& exits, const RankExit& first);

// Whether `first` is known to be the cause, or who left early; else it failed of the loss of
// another.
bool is_cause_known(const RankExits& exits, const RankExit& first);

// In words, what is not known of the cause; empty: it is known.
std::string doubt_about(const RankExits& exits, const RankExit& first);

}  // namespace muster
