// What else there is to say of ranks that do not come, beside who they are (late_ranks.h): told
// once a wait, by whoever knows more. It must not block.
#pragma once

#include <vector>

namespace muster {

// `late` are those that do not come, `came` the others of their group.
void set_late_detail(void (*tell)(const std::vector<int>& late, const std::vector<int>& came));

}  // namespace muster
