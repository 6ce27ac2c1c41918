// The nodes of the Slurm allocation that this process is in, as Slurm's variables tell them. For a
// command that is started once and starts something on each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"

namespace muster {

struct SlurmNode {
  std::string name{};
  int cpus = 0;        // of the allocation; 0: not told
  bool here = false;   // this process runs on it
  int het_group = -1;  // of a heterogeneous job: the component that it belongs to
};

// Of a heterogeneous job, the nodes of all components. Nothing outside of an allocation, and for a
// task of srun, which is one process of several. Throws: invalid_argument naming the variable that
// cannot be read.
std::optional<std::vector<SlurmNode>> slurm_nodes_of_environment();

// "a[1-3,07],b" is a1, a2, a3, a07 and b. Throws: invalid_argument.
Strings parse_slurm_nodes(const std::string& text);

// SLURM_JOB_CPUS_PER_NODE's value: "2(x3),1" is 2, 2, 2, 1. Throws: invalid_argument.
Ints parse_slurm_counts(const std::string& text);

// The command by which srun starts one process on the node, beside whatever runs there. It ends
// with the words of `program`.
Strings srun_command(const SlurmNode& node, const Strings& program);

// The environment for that command: this process's, without what a batch script asks of its own
// steps, which srun would read too.
Environment srun_environment();

}  // namespace muster
