// Ranks that are started again, or in place of others, may find no processes, descriptors or memory
// where the first start found them. What others hold may be free soon, so their start is tried
// again for a while.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/shortage.h"

namespace muster {

class ShortageWait {
 public:
  // Returns when to try again, and says why the first time. Throws: Error, and no Shortage, where
  // this has lasted for a minute.
  TimePoint next_try(const Shortage& why);
  // The start succeeded.
  void end() { since_.reset(); }

 private:
  OptionalTime since_;
};

}  // namespace muster
