// A launcher's report at the end of a failed job: failure.json, the card on standard error, and the
// error file of a launcher around this one.
#pragma once

#include <string>

#include "muster/launch/gpu_watch.h"
#include "muster/launch/rank_exit.h"
#include "muster/launch/rank_spec.h"

namespace muster {

// Says why the job failed: of `fault`, where there is one (GroupResult), else of its first rank's
// failure; of ranks that failed only after it was stopped, their errors. And what it has done
// without: earlier attempts, by the folder's record, and GPUs that have gone bad. What cannot be
// written is logged: the exit code holds whatever becomes of the report. `exits` in order of death.
void report_failure(const RankExits& exits,
                    const JobFacts& job,
                    int attempt,
                    int max_restarts,
                    const std::string& fault = {},
                    const BadGpus& bad_gpus = {});

}  // namespace muster
