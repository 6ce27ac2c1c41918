// Ends what an earlier run left behind. For the command when a run goes on, and for the server
// (server.h).
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

// Ends every process of the run folder's tasks, which the sentinel of the earlier run should have
// done already. Blocking: until they are gone, at most some seconds. Throws: unavailable naming one
// that does not end.
void end_left_over(const std::string& run_dir, const Strings& marks);

}  // namespace muster
