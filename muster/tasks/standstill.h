// How long something has been in the way of all that is left of a run. For the runner.
#pragma once

#include <chrono>
#include <optional>

#include "muster/base/clock.h"

namespace muster {

class Standstill {
 public:
  // True when that begins now. To be told again and again.
  bool is_there(bool there) {
    const bool begins = there && !since_;
    if (!there)
      since_.reset();
    if (begins)
      since_ = Clock::now();
    return begins;
  }

  // Whether it has lasted for so long; nothing: it may last for ever.
  bool lasts(std::optional<std::chrono::milliseconds> limit) const {
    return since_ && limit && Clock::now() - *since_ >= *limit;
  }

 private:
  std::optional<Clock::time_point> since_;
};

}  // namespace muster
