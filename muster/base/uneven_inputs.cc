// How it works: one flag for each thread. It is defined here, and not in the header, so that there
// is one in the process.
#include "muster/base/uneven_inputs.h"

namespace muster {

bool& UnevenInputs::allowed_here() {
  thread_local bool allowed = false;
  return allowed;
}

}  // namespace muster
