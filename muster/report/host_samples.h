// Shows `muster top` the ranks of a job's other hosts: the agents there answer, and it reads their
// answers. muster/trace/hosts_folder.h has how it asks.
#pragma once

#include <functional>
#include <string>

#include "muster/base/strings.h"
#include "muster/placement/plan.h"
#include "muster/report/top.h"

namespace muster {

// Returns an agent's RankSampler: it tells what the job's ranks do that this process has started.
// For one thread.
std::function<std::string(RankRange)> own_rank_sampler();

// Returns what has been answered lately. A file that cannot be read is a line of `problems`.
TopRanks ranks_of_other_hosts(const std::string& run_dir, Strings& problems);

}  // namespace muster
