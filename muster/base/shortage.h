// Processes, descriptors or memory that cannot be had now, and can later: for who may wait for
// them.
#pragma once

#include <source_location>
#include <string>

#include "muster/base/error.h"

namespace muster {

// What fail_errno throws for such a reason.
class Shortage : public Error {
 public:
  Shortage(int reason,
           const std::string& message,
           std::source_location where = std::source_location::current())
      : Error(ErrorCode::io, message, where), reason_(reason) {}
  int reason() const noexcept { return reason_; }  // the errno

 private:
  int reason_;
};

// EAGAIN, EMFILE, ENFILE, ENOMEM.
bool is_shortage(int errno_value);

}  // namespace muster
