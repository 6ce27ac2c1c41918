// What the launcher makes of its ranks' activity when a job has ended: where the time of their steps went, in
// words and as breakdown.json; one trace of all, where they traced.
#pragma once

#include "muster/launch/worker_spec.h"

namespace muster {

// `quiet`: files alone. `first_host`: rank 0 is here. Hosts that share a folder leave it to that one. What
// cannot be written is logged, and no error: the exit code holds.
void tell_activity(const JobFacts& job, int attempt, bool quiet, bool first_host = true);

}  // namespace muster
