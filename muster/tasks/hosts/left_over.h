// What an earlier run left behind. For the command when a run goes on, and for the server
// (server.h).
#pragma once

#include <string>
#include <vector>

namespace muster {

// Ends what an earlier run left behind, which its own sentinel should have done already: every
// process of the run folder's tasks. Blocking: until they are gone, at most some seconds. Throws:
// unavailable naming one that does not end.
void end_left_over(const std::string& run_dir, const std::vector<std::string>& marks);

}  // namespace muster
