// How `muster top` sees the ranks of a job's other hosts: it asks, by a file in the run folder; the job's
// agents answer, by files there (cluster/host_telemetry.h has the way between).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/placement/plan.h"
#include "muster/report/top.h"

namespace muster {

// An agent's RankSampler: what ranks of the job do that this process has started. For one thread.
std::function<std::string(RankRange)> own_rank_sampler();

// Whether the first host's agent runs and has its folder here, and so may be asked.
bool can_ask_other_hosts(const std::string& run_dir);

// For the next five seconds. Where the folder may not be written to, nobody is asked.
void ask_other_hosts(const std::string& run_dir);

// What has been answered in the last ten seconds. A file that cannot be read is a problem, in words.
std::vector<TopRank> ranks_of_other_hosts(const std::string& run_dir, std::vector<std::string>& problems);

}  // namespace muster
