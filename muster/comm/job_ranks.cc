// The number is a process's own: it is set when the job's group is made, and read from any thread.
#include "muster/comm/job_ranks.h"

#include <atomic>

namespace muster {

namespace {

std::atomic<int> g_job_ranks = 1;

}  // namespace

void set_job_ranks(int ranks) {
  g_job_ranks = ranks;
}

int job_ranks() {
  return g_job_ranks;
}

}  // namespace muster
