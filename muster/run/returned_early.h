// The error of a rank whose function returned while others made another call: it is the cause of
// theirs.
#pragma once

#include "muster/base/error.h"

namespace muster {

class ReturnedEarly : public Error {
 public:
  using Error::Error;
};

}  // namespace muster
