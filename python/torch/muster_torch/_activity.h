// Where the backend's collectives are written down.
#pragma once

#include <string>

namespace muster {

// From now on in the activity file that `library`, a libmuster.so.0, has open or opens. In none
// where that library is too old, or the process is no rank of a `muster run`.
void use_activity_of(const std::string& library);

}  // namespace muster
