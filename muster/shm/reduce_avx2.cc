// Compiled for processors with AVX2 and F16C; chosen at run time.
#pragma GCC target("avx2,f16c")
#include "muster/shm/reduce_kernels.h"

namespace muster::shm {

Reduce kernel_avx2(Type type, Op op) {
  return kernel(type, op);
}

}  // namespace muster::shm
