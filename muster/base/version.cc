// How it works: the build says which version this is (CMakeLists.txt).
#include "muster/base/version.h"

namespace muster {

const char* version() {
  return MUSTER_VERSION;
}

}  // namespace muster
