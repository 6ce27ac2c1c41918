// The activity files of a host's ranks as one short text of bytes, for a host that cannot read them where
// they lie: whole but for the calls before the last 64 of each rank.
#pragma once

#include <cstddef>
#include <string>

namespace muster {

inline constexpr size_t kCopiedCalls = 64;

// Of the ranks from `first` on that have files in RUN_DIR/activity/ATTEMPT. Files that are damaged or
// unreadable are left out. Empty where there are none.
std::string pack_activity(const std::string& run_dir, int attempt, size_t first, size_t count);

// Writes what pack_activity has made into RUN_DIR/hosts/activity, where activity_files() finds it; but for
// ranks that have files in RUN_DIR/activity, as where the hosts share the folder. Throws: invalid_argument
// for other bytes; io.
void unpack_activity(const std::string& packed, const std::string& run_dir);

}  // namespace muster
