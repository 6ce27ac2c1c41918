// Ranks are numbered host by host, so whether an axis stays within hosts follows from the numbers;
// it is noted because communication between hosts is what makes an axis slow.
#include "muster/placement/plan_mesh.h"

#include <ranges>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

// Whether a group of ranks along the axis lies on several hosts. Hosts count up with ranks, so the
// first and the last rank of a group tell.
bool leaves_host(const Plan& plan, const std::string& axis) {
  return any_of(plan.mesh.groups({axis}), [&](const Ints& ranks) {
    const RankPlan& first = plan.ranks[ranks.front()];
    const RankPlan& last = plan.ranks[ranks.back()];
    return first.host_index != last.host_index;
  });
}

}  // namespace

// The note is one of the whole job, and no warning: a large mesh has to leave hosts.
void set_mesh(Plan& plan, const MeshAxes& axes, PlanNotes& notes) {
  plan.mesh = checked_mesh(axes, int_size(plan.ranks));
  Strings between = mapped(plan.mesh.axes | std::views::filter([&](const MeshAxis& axis) {
                             return leaves_host(plan, axis.name);
                           }),
                           &MeshAxis::name);
  if (between.empty())
    return;
  notes.add(cat("mesh ",
                to_string(plan.mesh),
                ": ranks along ",
                join(between, " and "),
                " lie on several hosts"));
}

}  // namespace muster
