// Whether a failure may come of a disk without room, for the cards of jobs and of tasks. What fails
// for that often cannot say so, as what it says goes to the same disk.
#pragma once

#include <string>

namespace muster {

// The card's line about the disk that has `path`, a file or a folder; empty while there is room on
// it. `what` lies there, and `writer` has written to it: "the log", "the task".
std::string full_disk_line(const std::string& path, const char* what, const char* writer);

}  // namespace muster
