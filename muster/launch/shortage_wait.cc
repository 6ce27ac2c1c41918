// A shortage lasts from the first start that failed to the next one that succeeds. The error at its
// end is no Shortage any more, so that nobody waits for the same once more.
#include "muster/launch/shortage_wait.h"

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr milliseconds kTryShortageEvery{500};
constexpr milliseconds kLongestShortage{60'000};

}  // namespace

TimePoint ShortageWait::next_try(const Shortage& why) {
  const auto now = Clock::now();
  if (!since_) {
    log_warning("ranks cannot be started again yet: ",
                why.message(),
                "; trying for up to ",
                format_duration(kLongestShortage));
  }
  since_ = since_.value_or(now);
  if (now - *since_ >= kLongestShortage) {
    throw Error(why.code(),
                "ranks could not be started again for ",
                format_duration(kLongestShortage),
                ": ",
                why.message());
  }
  return now + kTryShortageEvery;
}

}  // namespace muster
