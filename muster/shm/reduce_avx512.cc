// Compiled for processors with AVX-512's basic sets; chosen at run time.
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#include "muster/shm/reduce_kernels.h"

namespace muster::shm {

Reduce kernel_avx512(Type type, Op op) {
  return kernel(type, op);
}

}  // namespace muster::shm
