// The groups of a mesh. checked_mesh() has compared the shape with the size of the job.
// Each axis has a group of the ranks that differ along it alone, and joined() makes one over
// several axes. All ranks make all groups, in one order.
#include "muster/parallel/mesh.h"

#include <optional>
#include <utility>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

Mesh::Mesh(ProcessGroup group, std::vector<MeshAxis> axes)
    : shape_(checked_mesh(std::move(axes), group.size())),
      group_(std::move(group)),
      coordinates_(shape_.coordinates(group_.rank())) {
  for (const MeshAxis& axis : shape_.axes)
    groups_.emplace(axis.name, joined({axis.name}));
  // The groups of single axes are in groups_, so joined_ keeps only those that the program asks
  // for.
  joined_.clear();
}

ProcessGroup& Mesh::group(const std::string& axis) {
  shape_.axis(axis);  // or says which there are
  return groups_.at(axis);
}

// Makes the groups of ranks that differ in these axes only, and returns this rank's. All ranks take
// part in making each group, also one that they are not in.
ProcessGroup Mesh::joined(const Strings& axes) {
  std::optional<ProcessGroup> mine;
  for (const Ints& ranks : shape_.groups(axes))
    if (auto group = group_.new_group(ranks))
      mine = std::move(group);
  joined_.push_back(*mine);
  return *mine;
}

// The group that was given stays open, since it belongs to whoever made the mesh.
void Mesh::shutdown() {
  for (auto& group : joined_)
    group.shutdown();
  for (auto& [axis, group] : groups_)
    group.shutdown();
}

}  // namespace muster
