// Files of events (`--trace`) of a host's ranks as bytes, for a host that cannot read them where they lie.
#pragma once

#include <cstddef>
#include <string>

namespace muster {

// Of the ranks from `first` on, of all attempts, as long as they have no more than `most` bytes together;
// those beyond are left out. Empty where there are none.
std::string pack_events(const std::string& run_dir, size_t first, size_t count, size_t most);

// Writes what pack_events has made into RUN_DIR/trace, for merge_trace(). Files that are there stay as they
// are. Throws: invalid_argument for other bytes; io.
void unpack_events(const std::string& packed, const std::string& run_dir);

}  // namespace muster
