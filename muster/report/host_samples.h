// How `muster top` sees the ranks of a job's other hosts: what the agents there answer, and what it
// reads of that. How it asks: muster/trace/hosts_folder.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/placement/plan.h"
#include "muster/report/top.h"

namespace muster {

// An agent's RankSampler: what ranks of the job do that this process has started. For one thread.
std::function<std::string(RankRange)> own_rank_sampler();

// What has been answered lately (`muster/trace/hosts_folder.h`). A file that cannot be read is a
// problem, in words.
std::vector<TopRank> ranks_of_other_hosts(const std::string& run_dir,
                                          std::vector<std::string>& problems);

}  // namespace muster
