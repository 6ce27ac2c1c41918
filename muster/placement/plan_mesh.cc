#include "muster/placement/plan_mesh.h"

#include <algorithm>

#include "muster/base/strings.h"

namespace muster {
namespace {

int host_of_rank(const Plan& plan, int rank) {
  return plan.ranks[static_cast<size_t>(rank)].host_index;
}

bool leaves_host(const Plan& plan, const std::string& axis) {
  const auto groups = plan.mesh.groups({axis});
  return std::any_of(groups.begin(), groups.end(), [&](const std::vector<int>& ranks) {
    return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
      return host_of_rank(plan, rank) != host_of_rank(plan, ranks.front());
    });
  });
}

}  // namespace

void set_mesh(Plan& plan, const std::vector<MeshAxis>& axes, PlanNotes& notes) {
  plan.mesh = checked_mesh(axes, static_cast<int>(plan.ranks.size()));
  std::vector<std::string> between;
  for (const MeshAxis& axis : plan.mesh.axes)
    if (leaves_host(plan, axis.name))
      between.push_back(axis.name);
  if (between.empty())
    return;
  notes.add(cat("mesh ",
                to_string(plan.mesh),
                ": ranks along ",
                join(between, " and "),
                " lie on several hosts"));
}

}  // namespace muster
