// One attempt of a job on this host: every rank started, watched and ended. Called by the launcher;
// decides nothing about restarts.
#pragma once

#include <functional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/failure_policy.h"
#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/rank_spec.h"
#include "muster/supervise/process_set.h"

namespace muster {

struct Replacing;

struct GroupResult {
  RankExits exits;         // in the order of death, without those that were replaced
  int stopped_by = 0;      // the signal that the launcher got, if it did
  bool timed_out = false;  // the time limit was over first
  std::string fault{};     // why all were killed where no rank is the cause, as an error; empty: no
  bool all_gone = true;    // false: a process is left that even SIGKILL did not end
};

struct GroupRules {
  milliseconds shutdown_timeout{30'000};  // grace period between SIGTERM and SIGKILL
  OptionalTime until{};                   // the job's time limit
  milliseconds early_end_after{10'000};   // a rank ended well, the others go on: then say so
  // Rank 0 of these may listen there, and nobody of another user; 0: there is no port to watch.
  int master_port = 0;
  // A rank that is stopped (SIGSTOP, a debugger) is named; after this long it is ended, which is a
  // failure.
  OptionalDuration stopped_for{};
  FailurePolicy failure_policy = FailurePolicy::end;
  // The ranks have run before: where they find no processes now, they are started later.
  bool is_again = false;
  Replacing* replacing = nullptr;  // with `replace`: who decides about the other process
  // Told at once of each rank that ended by itself and badly; what its streams hold then is not in
  // it yet.
  std::function<void(const RankExit&)> on_rank_failed{};
  // Somebody waits for the end of these ranks: who reads their output gets no more time than after
  // a stop.
  Condition is_awaited{};
};

// Starts `specs` (rank 0 with the launcher's standard input) and waits until every one has ended.
// Blocking: until then. Throws: SpawnError, io when a rank cannot be started; those started before
// it are ended.
GroupResult run_local_ranks(ProcessSet& processes,
                            const RankSpecs& specs,
                            const Ints& inherit_fds,
                            const GroupRules& rules);

}  // namespace muster
