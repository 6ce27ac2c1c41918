// The mesh of a plan's ranks, and a note of the axes that leave a host. A private header of the
// planner.
#pragma once

#include "muster/placement/plan.h"
#include "muster/placement/plan_notes.h"

namespace muster {

// Throws: as checked_mesh.
void set_mesh(Plan& plan, const MeshAxes& axes, PlanNotes& notes);

}  // namespace muster
