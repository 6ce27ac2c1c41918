#include "muster/base/uneven_inputs.h"

namespace muster {

bool& UnevenInputs::allowed_here() {
  thread_local bool allowed = false;
  return allowed;
}

}  // namespace muster
