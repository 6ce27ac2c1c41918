// Reductions go element by element over the sources of all ranks, always in rank order: the bits
// are the same on every rank and in every run. Half and bfloat16 are added up as float and rounded
// once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster::shm {

enum class Type : uint32_t {
  f64,
  f32,
  bf16,
  f16,
  i8,
  u8,
  i16,
  i32,
  i64,
  boolean,
  c64,
  c128,
  other
};
enum class Op : uint32_t { sum, avg, min, max, product, band, bor, bxor };

const char* to_string(Type type);
const char* to_string(Op op);
size_t size_of(Type type);  // other: 1, the unit of what is only moved

// An enumerator's name in a table of all names; "?" for a number that is beyond the table, which a
// damaged neighbour may have written.
template <class Enum, size_t count>
const char* name_in(const char* const (&names)[count], Enum value) {
  const auto place = static_cast<size_t>(value);
  return place < count ? names[place] : "?";
}

// out[i] = in[0][i] op in[1][i] op … for `count` elements. `out` may be one of the sources. NaN
// wins in min and max, as in torch.minimum. avg divides the sum by `sources`.
using Reduce = void (*)(void* out, const void* const* in, int sources, size_t count);

// The fastest loop for this machine's processor; MUSTER_SIMD=plain|avx2 takes a lesser one.
// nullptr: the operation means nothing for the type (min of complex numbers, bit operations on
// floats, the average of integers).
Reduce reduce_for(Type type, Op op);

// The loop of one instruction set, by its name, for tests and benchmarks. nullptr also where the
// processor does not have the set.
Reduce reduce_for(Type type, Op op, const char* instructions);
const char* best_instructions();

}  // namespace muster::shm
