// The request of muster_plan: JSON to what the launcher plans by.
#pragma once

#include "muster/launch/launch.h"

namespace muster {

// Throws: invalid_argument naming the member.
LaunchOptions plan_request(const char* text);

}  // namespace muster
