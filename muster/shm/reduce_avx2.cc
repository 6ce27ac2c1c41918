// Compiled for processors with AVX2 and F16C; chosen at run time.
#ifndef __clang__  // clang has them from CMakeLists.txt
#pragma GCC target("avx2,f16c")
#endif
#include "muster/shm/reduce_kernels.h"

namespace muster::shm {

Reduce kernel_avx2(Type type, Op op) {
  return kernel(type, op);
}

}  // namespace muster::shm
