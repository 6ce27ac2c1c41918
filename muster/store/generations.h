// The generations of a job that replaces ranks in place (`muster run --on-failure replace`), as keys of its
// store. A generation is a set of ranks that work together: where some have failed, the launcher announces
// the next one, to which the others come without ending. Its number is the attempt's (MUSTER_ATTEMPT).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "muster/store/store.h"

namespace muster {

// The launcher: rank by rank, since each waits for a key of its own. `why` is for people.
void announce_generation(Store& store, int generation, int world_size, const std::string& why);

// The launcher: whether the rank has come, which need not mean that all have found each other.
bool has_come_to_generation(Store& store, int generation, int rank);

// A rank: it has come to this generation.
void come_to_generation(Store& store, int generation, int rank);

// A rank: why there is this generation; nothing when it is not announced within `patience`, or the rank has
// said that it listens no more. Blocking: until then.
std::optional<std::string> wait_for_generation(Store& store, int generation, int rank,
                                               std::chrono::milliseconds patience);

// A rank, from any thread: a wait for this generation ends, now or when it begins.
void stop_waiting_for_generation(Store& store, int generation, int rank);

}  // namespace muster
