// Compiled for processors with AVX-512's basic sets; chosen at run time.
#ifndef __clang__  // clang has them from CMakeLists.txt
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#endif
#include "muster/shm/reduce_kernels.h"

namespace muster::shm {

Reduce kernel_avx512(Type type, Op op) {
  return kernel(type, op);
}

}  // namespace muster::shm
