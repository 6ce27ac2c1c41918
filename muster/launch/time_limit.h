// Time limits of whole jobs and runs as people write them: a duration, or the end of the Slurm job
// around them. For the flags of `muster run` and `muster tasks`.
#pragma once

#include <string>

#include "muster/base/clock.h"

namespace muster {

// "90m"; "slurm": so long before the end of the Slurm job (SLURM_JOB_END_TIME) that ranks have
// `shutdown` and the launcher half a minute; "slurm-10m": ten minutes before it. From now on;
// empty: no limit. Throws: invalid_argument, which begins with `flag`, for any other text, and when
// less time than that is left.
OptionalDuration parse_time_limit(const std::string& text, const char* flag, milliseconds shutdown);

}  // namespace muster
