// What a plan says of the network: below which switch each rank is, and which axes of a mesh cross
// switches. A private header of the planner.
#pragma once

#include "muster/placement/network_order.h"
#include "muster/placement/plan.h"
#include "muster/placement/plan_notes.h"

namespace muster {

// Adds to the reasons of ranks and to the notes. Nothing without switches.
void tell_network(Plan& plan, const SwitchPaths& switches, PlanNotes& notes);

}  // namespace muster
