// Within the guard's life operations compute in a smaller type where PyTorch's lists allow it, on this
// thread. Used by precision.h; good on its own to switch it off around a part (`enabled` false).
//
// Source: torch.autocast.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace muster {

class [[nodiscard]] Autocast {
 public:
  Autocast(c10::DeviceType device, c10::ScalarType type, bool enabled);
  // What was before is again, also after an exception; leaving the outermost guard drops the cast weights.
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType type_before_;
  bool enabled_before_;
};

}  // namespace muster
