// The processes of a job's ranks on this host, and what they use of the CPU and of memory, from
// /proc. For `muster top`. Ranks are known by their environment, so their programs need not use
// muster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

struct RankUsage {
  int rank = 0;  // as it was started
  int pid = 0;
  bool stopped = false;    // by SIGSTOP or a debugger
  double cpu_seconds = 0;  // used since its start, its children in the same process group included
  double age_seconds = 0;
  uint64_t memory_bytes = 0;  // resident
};

// Returns the ranks whose MUSTER_RUN_DIR is `run_dir`, the last attempt's at the end. It does not
// see processes of other users. Throws: io if there is no /proc.
std::vector<RankUsage> find_rank_usage(const std::string& run_dir);

}  // namespace muster
