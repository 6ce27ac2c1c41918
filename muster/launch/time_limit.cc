// Slurm tells when its job ends, as a time of the clock; the limit is counted from now, so that a
// clock that is set later moves nothing.
#include "muster/launch/time_limit.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "muster/base/env.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"

namespace muster {

namespace {

// The time that the launcher has for its own end, after its ranks have had their
// --shutdown-timeout.
constexpr milliseconds kOwnEnd{30'000};
constexpr std::string_view kSlurm = "slurm";
constexpr auto kSlurmEnd = "SLURM_JOB_END_TIME";

// Returns how long before the end of the Slurm job the limit is: ten minutes for "slurm-10m".
// Returns nothing for a text that does not name Slurm.
OptionalDuration before_slurm_end(const std::string& text,
                                  const char* flag,
                                  milliseconds shutdown) {
  if (text == kSlurm)
    return shutdown + kOwnEnd;
  if (!text.starts_with(kSlurm) || text[kSlurm.size()] != '-')
    return std::nullopt;
  return parse_duration(std::string_view(text).substr(kSlurm.size() + 1), cat(flag, " slurm-TIME"));
}

// Returns the time until the end of the Slurm job around this process.
milliseconds until_slurm_end(const std::string& text, const char* flag) {
  const auto end = get_env_int(kSlurmEnd);
  if (!end) {
    fail_usage(
        cat(flag,
            " ",
            text,
            ": expected ",
            kSlurmEnd,
            " (seconds since 1970), which Slurm sets after 22.05, got none; set it, by export ",
            kSlurmEnd,
            "=$(date -d $(squeue -h -j $SLURM_JOB_ID -o %e) +%s), or give a time such as 90m"));
  }
  const auto now = WallClock::now().time_since_epoch();
  // Clocks do not count much further.
  const milliseconds most = std::chrono::hours(24 * 10'000);
  constexpr int64_t kFarthest = int64_t{1} << 40;
  const milliseconds at = std::chrono::seconds(std::clamp<int64_t>(*end, 0, kFarthest));
  return std::min(at - std::chrono::duration_cast<milliseconds>(now), most);
}

}  // namespace

// A limit that has already passed is an error: the job would be ended at once.
OptionalDuration parse_time_limit(const std::string& text,
                                  const char* flag,
                                  milliseconds shutdown) {
  if (text.empty())
    return std::nullopt;
  const auto before = before_slurm_end(text, flag, shutdown);
  const milliseconds limit =
      before ? until_slurm_end(text, flag) - *before : parse_duration(text, flag);
  if (limit > milliseconds(0))
    return limit;
  if (!before)
    fail_usage(
        cat(flag, ": expected a time above 0, got '", printable(text), "'; leave it out for none"));
  fail_usage(cat(flag,
                 " ",
                 text,
                 ": expected more than ",
                 format_duration(*before),
                 " until the end of the Slurm job, got ",
                 format_seconds(in_seconds(limit + *before)),
                 " (",
                 kSlurmEnd,
                 "=",
                 *get_env(kSlurmEnd),
                 "); ask Slurm for more, or give slurm-TIME with a shorter time"));
}

}  // namespace muster
