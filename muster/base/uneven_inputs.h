// Whether the ranks may have different numbers of inputs here, as inside of
// DistributedDataParallel::join(). Loaders refuse to train on them otherwise.
#pragma once

#include "muster/base/no_copy.h"

namespace muster {

// Allows them in this thread while it lives.
class UnevenInputs : NoCopy {
 public:
  UnevenInputs() : before_(allowed_here()) { allowed_here() = true; }
  ~UnevenInputs() { allowed_here() = before_; }

  static bool allowed() { return allowed_here(); }

 private:
  static bool& allowed_here();
  bool before_;
};

}  // namespace muster
