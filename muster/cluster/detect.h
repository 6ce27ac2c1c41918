// Reads what a cluster's own launcher says of the hosts of this job: `srun muster run`, `mpirun
// muster run`, Kubernetes. In the order of the environment contract: Open MPI, PMI, Slurm.
#pragma once

#include <optional>

#include "muster/cluster/cluster_options.h"

namespace muster {

// Fills in how many hosts there are, which this is, and where they meet. False when no such
// launcher started this process, or on one host only. Throws: invalid_argument when it started
// several agents on a host, or on hosts that have no way to find each other.
bool detect_cluster(ClusterOptions& options);

// This host's number by such variables, or by an indexed Kubernetes job's; for when the rest has
// been told.
std::optional<int> node_rank_of_environment();

}  // namespace muster
