#include "muster/base/version.h"

namespace muster {

const char* version() {
  return MUSTER_VERSION;
}

}  // namespace muster
