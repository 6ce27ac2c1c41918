// A rank's activity file in fewer bytes, for a host that cannot read it where it lies: whole but
// for the calls before its last 256.
#pragma once

#include <cstddef>
#include <string>

namespace muster {

inline constexpr size_t kCopiedCalls = 256;

// Of RUN_DIR/activity/ATTEMPT/RANK. Throws: as read_activity.
std::string pack_activity(const std::string& run_dir, int attempt, int rank);

// Writes what pack_activity has made where activity_files() finds it (hosts_folder.h), unless the
// rank has its own file in RUN_DIR/activity, as where the hosts share the folder. Throws:
// invalid_argument for other bytes, or those of another rank; io.
void unpack_activity(const std::string& packed, const std::string& run_dir, int attempt, int rank);

}  // namespace muster
