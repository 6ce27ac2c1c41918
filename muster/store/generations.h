// The generations of a job that replaces ranks in place (`muster run --on-failure replace`), as
// keys of the store that each host's launcher serves. A generation is a set of ranks that work
// together: where some have failed, or hosts come or go, the launchers announce the next one, to
// which the others come without ending. Its number is the attempt's (MUSTER_ATTEMPT).
#pragma once

#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/rank_env.h"
#include "muster/store/store.h"

namespace muster {

// What a process that is to come to the next generation is told.
struct Generation {
  int number = 0;
  std::string why{};        // for people
  Environment variables{};  // of the rank that it is there (generation_variables)
};

// What a process is called here: by the rank and attempt that it was started as, whatever it is by
// now.
std::string process_name(int attempt, int rank);

// The text that an announcement is. Throws: invalid_argument when it is none.
Generation generation_from(const std::string& text, int number);

// The launcher: to one process, since each waits for a key of its own.
void announce_generation(Store& store, const std::string& process, const Generation& generation);

// The launcher: whether it has come, which need not mean that all have found each other.
bool has_come_to_generation(Store& store, const std::string& process, int generation);

// A rank: it has come to this generation.
void come_to_generation(Store& store, const std::string& process, int generation);

// A rank: what is announced of this generation; nothing when it is not announced within `patience`,
// or the rank has said that it listens no more. Blocking: until then.
std::optional<Generation> wait_for_generation(Store& store,
                                              const std::string& process,
                                              int generation,
                                              milliseconds patience);

// A rank, from any thread: a wait for this generation ends, now or when it begins.
void stop_waiting_for_generation(Store& store, const std::string& process, int generation);

}  // namespace muster
