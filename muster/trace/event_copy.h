// A rank's file of events (`--trace`) as bytes, for a host that cannot read it where it lies.
#pragma once

#include <string>

namespace muster {

// The part of RUN_DIR/trace/ATTEMPT/RANK that has events; empty: there is none. Throws: io.
std::string pack_events(const std::string& run_dir, int attempt, int rank);

// Writes it there, for merge_trace(), unless there is a file. Throws: io.
void unpack_events(const std::string& packed, const std::string& run_dir, int attempt, int rank);

}  // namespace muster
