// The number of ranks of this process's job, for checks that have no group at hand.
#pragma once

namespace muster {

// Whoever makes the job's group says so. 1: the process belongs to no job, or has left it.
void set_job_ranks(int ranks);
int job_ranks();

}  // namespace muster
