// While the guard lives, operations in this thread compute in a smaller type if PyTorch's lists
// allow it. Used by precision.h; can be used on its own to disable autocast around a part
// (`enabled` false).
//
// Source: torch.autocast.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "muster/base/no_copy.h"

namespace muster {

class [[nodiscard]] Autocast : NoCopy {
 public:
  Autocast(c10::DeviceType device, c10::ScalarType type, bool enabled);
  // Restores the previous state, also after an exception; the end of the outermost guard drops the
  // cast weights.
  ~Autocast();

 private:
  c10::DeviceType device_;
  c10::ScalarType type_before_;
  bool enabled_before_;
};

}  // namespace muster
