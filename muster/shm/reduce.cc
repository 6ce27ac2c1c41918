// Chooses among the loops of reduce_kernels.h, which are compiled once for each instruction set
// (reduce_plain.cc, reduce_avx2.cc, reduce_avx512.cc). The choice is made at run time, so that one
// build runs on every processor; it changes the speed and never the bits.
#include "muster/shm/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <string>
#include <string_view>

#include "muster/base/env.h"
#include "muster/base/error.h"

namespace muster::shm {

Reduce kernel_plain(Type type, Op op);
#if defined(__x86_64__)
Reduce kernel_avx2(Type type, Op op);
Reduce kernel_avx512(Type type, Op op);
#endif

namespace {

// One instruction set's table: the loop for a type and an operation.
using Kernel = Reduce (*)(Type, Op);

#if defined(__x86_64__)
// GCC's __builtin_cpu_supports does not know this one.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && has_f16c();
}

// All the sets that reduce_avx512.cc is compiled for.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0;
}
#endif

// nullptr where this processor does not have the instructions.
Kernel kernel_of(std::string_view instructions) {
  if (instructions == "plain")
    return kernel_plain;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (instructions == "avx2" && has_avx2())
    return kernel_avx2;
  if (instructions == "avx512" && has_avx512())
    return kernel_avx512;
#endif
  return nullptr;
}

// The best set that this processor has, or the one that the user asks for.
const char* choose_instructions() {
  const auto asked = get_env("MUSTER_SIMD").value_or("");
  for (const char* instructions : {"avx512", "avx2", "plain"}) {
    if (!asked.empty() && asked != instructions)
      continue;
    if (kernel_of(instructions) != nullptr)
      return instructions;
  }
  throw invalid_argument(
      "environment: expected MUSTER_SIMD to be plain, avx2 or avx512, whichever this "
      "processor has, got '" +
      asked + "'");
}

}  // namespace

const char* best_instructions() {
  static const char* const best = choose_instructions();
  return best;
}

Reduce reduce_for(Type type, Op op, const char* instructions) {
  const Kernel kernel = kernel_of(instructions);
  return kernel == nullptr ? nullptr : kernel(type, op);
}

// The answer is kept: every operation asks, and asking a virtual processor takes 10 µs.
Reduce reduce_for(Type type, Op op) {
  static const Kernel best = kernel_of(best_instructions());
  return best(type, op);
}

const char* to_string(Type type) {
  constexpr const char* kNames[] = {"Double",
                                    "Float",
                                    "BFloat16",
                                    "Half",
                                    "Char",
                                    "Byte",
                                    "Short",
                                    "Int",
                                    "Long",
                                    "Bool",
                                    "ComplexFloat",
                                    "ComplexDouble",
                                    "bytes"};
  return name_in(kNames, type);
}

const char* to_string(Op op) {
  constexpr const char* kNames[] = {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"};
  return name_in(kNames, op);
}

// Types are numbers that this process has made: unlike names, sizes are never those of a call that
// was read from another rank's memory.
size_t size_of(Type type) {
  constexpr size_t kSizes[] = {8, 4, 2, 2, 1, 1, 2, 4, 8, 1, 8, 16, 1};
  return kSizes[static_cast<size_t>(type)];
}

}  // namespace muster::shm
