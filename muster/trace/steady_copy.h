// The bytes of an activity file that its rank may be writing to, for who makes values of them
// (read_activity.h) or sends them on (activity_copy.h). Knows where records lie, and nothing of
// what they mean.
#pragma once

#include <string>

namespace muster {

// The file, in which each record is whole: one that was being written whenever it was looked at is
// zero. A file of another size is as it is. Throws: io.
std::string steady_copy(const std::string& path);

}  // namespace muster
