// Random numbers of a scope's own: what this thread draws on the CPU is not taken from LibTorch's
// generator, whose numbers the program and its other threads draw meanwhile.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "muster/base/no_copy.h"

namespace muster {

class OwnNumbers : NoCopy {
 public:
  OwnNumbers();

 private:
  c10::impl::IncludeDispatchKeyGuard to_ours_;
};

}  // namespace muster
