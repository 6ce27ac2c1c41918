// Processes, descriptors or memory that cannot be had now, and can later: for who may wait for
// them.
#pragma once

#include "muster/base/error.h"

namespace muster {

// What fail_errno throws for such a reason.
class Shortage : public Error {
 public:
  using Error::Error;
};

// EAGAIN, EMFILE, ENFILE, ENOMEM.
bool is_shortage(int errno_value);

}  // namespace muster
