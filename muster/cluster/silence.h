// How long the hosts of a job bear it when one of them cannot be heard. A host that is cut off
// gives itself up first, and has ended its ranks before the others go on without it.
//
//   last sign of life ─limit─▶ it gives itself up ─grace─▶ its ranks have ended ─▶ the others go on
#pragma once

#include <algorithm>

#include "muster/base/clock.h"

namespace muster {

class Silence {
 public:
  using Time = milliseconds;

  static constexpr Time kLeast{4'000};

  // `limit`: --rdzv-conf's keep_alive_interval times keep_alive_max_attempt.
  constexpr explicit Silence(Time limit) : limit_(limit) {}

  constexpr Time limit() const { return limit_; }

  // Between two signs of life, and between two tries to reach a store that does not answer.
  constexpr Time step() const { return std::min(limit_ / 16, Time(1'000)); }

  // For one answer of a store that is there and slow.
  constexpr Time answer() const { return limit_ / 4; }

  // The last sign of life may be a step older than the silence.
  constexpr Time gives_itself_up_after() const { return limit_ + step(); }

  // The time between SIGTERM and SIGKILL for the ranks of a host that has given itself up.
  constexpr Time grace() const { return std::min(limit_ / 6, Time(2'000)); }

  // Two steps more, for a busy machine.
  constexpr Time is_gone_after() const { return gives_itself_up_after() + grace() + 2 * step(); }

 private:
  Time limit_;
};

}  // namespace muster
