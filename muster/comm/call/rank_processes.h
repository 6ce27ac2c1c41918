// The job's ranks on this host, as processes: which of them have ended. For errors of backends that
// know that a connection closed, and not whose.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace muster {

struct RankProcess {
  int rank = 0;
  int pid = 0;
};

// Replaces what was told before. Only processes of this host and PID namespace, all alive, but for
// this one.
void remember_rank_processes(const std::vector<RankProcess>& ranks);

// Those known to have ended.
std::vector<RankProcess> ended_processes();

// "rank 2 (process 18017)", of several "rank 2 (process 18017), rank 3 (process 18018)"; empty
// where none is known to have ended. Blocking: for `patience` at most, while none has.
std::string ended_ranks(std::chrono::milliseconds patience);

}  // namespace muster
