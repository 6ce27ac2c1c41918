// The job's ranks as a grid with named axes, and the process groups along them.
//
//   muster::Mesh mesh = ctx.mesh({{"dp", 2}, {"pp", 2}, {"tp", 2}});  // 8 ranks; tp varies fastest
//   muster::DistributedDataParallel model(stage, mesh.group("dp"));
//   if (mesh.rank("pp") == 0) …
//
// The mesh gives axes no meaning: each kind of parallelism takes a group. `muster run --mesh
// dp=2,pp=2,tp=2` orders the GPUs so that neighbours on the last axes have the best links.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "muster/base/mesh_shape.h"
#include "muster/comm/process_group.h"

namespace muster {

class Mesh {
 public:
  // One size may be -1: the remaining ranks. Collective: over `group`. Throws: as checked_mesh.
  Mesh(ProcessGroup group, std::vector<MeshAxis> axes);

  const MeshShape& shape() const { return shape_; }
  ProcessGroup& all() { return group_; }

  // The ranks that differ from this one only along `axis`. Throws: invalid_argument naming the
  // axes.
  ProcessGroup& group(const std::string& axis);
  int size(const std::string& axis) const { return shape_.size(axis); }
  int rank(const std::string& axis) const {
    return coordinates_[shape_.axis(axis)];
  }  // along `axis`

  // The ranks that differ from this one only along these axes: {"dp", "tp"} gives those with the
  // same pipeline stage. Collective: over all ranks, with the same axes.
  ProcessGroup joined(const std::vector<std::string>& axes);

  // Shuts down all groups except the whole one. Collective: yes.
  void shutdown();

 private:
  MeshShape shape_;
  ProcessGroup group_;
  std::vector<int> coordinates_;
  std::map<std::string, ProcessGroup> groups_;
  std::vector<ProcessGroup> joined_;
};

}  // namespace muster
