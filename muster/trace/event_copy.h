// A rank's file of events (`--trace`) as bytes, for a host that cannot read it where it lies.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

// "0/1": the files of RUN_DIR/trace, as attempt and rank.
Strings event_places(const std::string& run_dir);

// The part of that file that has events; empty: it is more than `most` bytes. Throws: io.
std::string pack_events(const std::string& run_dir, const std::string& place, size_t most);

// Writes it there, for merge_trace(), unless there is a file. Throws: invalid_argument for another
// place; io.
void unpack_events(const std::string& packed, const std::string& run_dir, const std::string& place);

}  // namespace muster
