// LibTorch's autocast is a setting of the thread. The guard sets it and puts back what was there,
// so guards may be nested. The outermost one clears the cache of converted weights.
#include "muster/train/autocast.h"

#include <ATen/autocast_mode.h>

#include "muster/base/torch_names.h"

namespace muster {

Autocast::Autocast(c10::DeviceType device, ScalarType type, bool enabled)
    : device_(device),
      type_before_(at::autocast::get_autocast_dtype(device)),
      enabled_before_(at::autocast::is_autocast_enabled(device)) {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, type);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0)
    at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, type_before_);
}

}  // namespace muster
