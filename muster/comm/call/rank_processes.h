// Knows which of the job's ranks on this host have ended, as processes, for errors of backends that
// know that a connection closed but not whose.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/clock.h"

namespace muster {

struct RankProcess {
  int rank = 0;
  int pid = 0;
};

// Replaces what was told before. The processes are of this host and PID namespace, all alive, and
// this one is not among them.
void remember_rank_processes(const std::vector<RankProcess>& ranks);

// Returns those known to have ended.
std::vector<RankProcess> ended_processes();

// "rank 2 (process 18017)", of several "rank 2 (process 18017), rank 3 (process 18018)"; empty
// where none is known to have ended. Blocking: for `patience` at most, while none has.
std::string ended_ranks(milliseconds patience);

}  // namespace muster
