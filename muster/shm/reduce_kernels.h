// The loops themselves, compiled once for every instruction set by the file that includes this.
// Only what has no name outside of its file may be used here: a function shared with others could
// be taken from the file with the richest instructions.
#if defined(__x86_64__)
#include <cstdint>

#include <immintrin.h>
#endif

#include "muster/shm/reduce.h"

namespace muster::shm {
namespace {

constexpr size_t kBlock = 2048;  // elements, summed in the first-level cache

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Bool {
  uint8_t value;
};
template <class T>
struct Complex {
  T re, im;
};

// A product that stays one: GCC 12 fuses those of complex numbers with what is added (vfmaddsub)
// even where that is forbidden, and then AVX-512's bits are not the others'.
template <class T>
T product(T a, T b) {
#if __has_builtin(__builtin_assoc_barrier)
  return __builtin_assoc_barrier(a * b);
#else
  return a * b;
#endif
}

float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

template <class T>
bool is_nan(T value) {
  if constexpr (kSame<T, float> || kSame<T, double>)
    return __builtin_isnan(value);
  return false;
}

// The type in which values of T are added up.
template <class T>
struct Sum {
  using Type = T;
  static void load(T* to, const T* from, size_t count) {
    __builtin_memcpy(to, from, count * sizeof(T));
  }
  static void store(T* to, const T* from, size_t count) {
    __builtin_memcpy(to, from, count * sizeof(T));
  }
};

template <>
struct Sum<BFloat16> {
  using Type = float;
  static void load(float* to, const BFloat16* from, size_t count) {
    for (size_t i = 0; i < count; ++i)
      to[i] = float_of(static_cast<uint32_t>(from[i].bits) << 16);
  }
  static void store(BFloat16* to, const float* from, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = bits_of(from[i]);
      const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
      to[i].bits = static_cast<uint16_t>(from[i] != from[i] ? 0x7fc0 : rounded);
    }
  }
};

float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest >= 0x7c00)
    return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);  // infinity, NaN
  if (rest >= 0x400)
    return float_of(sign | ((rest << 13) + (112 << 23)));
  const float small = static_cast<float>(rest) * 0x1p-24F;  // subnormal
  return float_of(sign | bits_of(small));
}

uint16_t half_of_float(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (rest >> 13 & 0x3ff));  // NaN
  if (rest >= 0x477ff000)
    return static_cast<uint16_t>(sign | 0x7c00);  // rounds to infinity
  if (rest < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded bits in the lowest places
    return static_cast<uint16_t>(sign | (bits_of(float_of(rest) + 0.5F) - bits_of(0.5F)));
  }
  return static_cast<uint16_t>(sign | ((rest - (112 << 23) + 0xfff + (rest >> 13 & 1)) >> 13));
}

template <>
struct Sum<Half> {
  using Type = float;
  static void load(float* to, const Half* from, size_t count) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(
          to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
#endif
    for (; i < count; ++i)
      to[i] = float_of_half(from[i].bits);
  }
  static void store(Half* to, const float* from, size_t count) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
    }
#endif
    for (; i < count; ++i)
      to[i].bits = half_of_float(from[i]);
  }
};

struct Add {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a + b);
  }
  template <class T>
  static Complex<T> of(Complex<T> a, Complex<T> b) {
    return {a.re + b.re, a.im + b.im};
  }
  static Bool of(Bool a, Bool b) { return {static_cast<uint8_t>((a.value | b.value) != 0)}; }
  // Sums that wrap: signed overflow is no such thing for the compiler.
  static int32_t of(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
  static int64_t of(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct Multiply {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a * b);
  }
  template <class T>
  static Complex<T> of(Complex<T> a, Complex<T> b) {
    return {product(a.re, b.re) - product(a.im, b.im), product(a.re, b.im) + product(a.im, b.re)};
  }
  static Bool of(Bool a, Bool b) { return {static_cast<uint8_t>(a.value != 0 && b.value != 0)}; }
  static int16_t of(int16_t a, int16_t b) {
    return static_cast<int16_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
  }
  static int32_t of(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
  }
  static int64_t of(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
struct Least {
  template <class T>
  static T of(T a, T b) {
    return b < a || is_nan(b) ? b : a;
  }
  static Bool of(Bool a, Bool b) { return Multiply::of(a, b); }
};
struct Greatest {
  template <class T>
  static T of(T a, T b) {
    return b > a || is_nan(b) ? b : a;
  }
  static Bool of(Bool a, Bool b) { return Add::of(a, b); }
};
struct BitAnd {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
  static Bool of(Bool a, Bool b) { return Multiply::of(a, b); }
};
struct BitOr {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
  static Bool of(Bool a, Bool b) { return Add::of(a, b); }
};
struct BitXor {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
  static Bool of(Bool a, Bool b) {
    return {static_cast<uint8_t>((a.value != 0) != (b.value != 0))};
  }
};

template <class T>
void divide(T* values, size_t count, int by) {
  const T divisor = static_cast<T>(by);
  for (size_t i = 0; i < count; ++i)
    values[i] /= divisor;
}
template <class T>
void divide(Complex<T>* values, size_t count, int by) {
  const T divisor = static_cast<T>(by);
  for (size_t i = 0; i < count; ++i)
    values[i] = {values[i].re / divisor, values[i].im / divisor};
}

// The floating-point state that a thread begins with, for as long as this lives. A program may have
// another in its own threads (torch::set_flush_denormal) than a queue's thread has, and each
// reduces a part.
class PlainArithmetic {
 public:
#if defined(__x86_64__)
  PlainArithmetic() : before_(_mm_getcsr()) { set(kPlain); }
  ~PlainArithmetic() { set(before_); }

 private:
  static constexpr unsigned kPlain = 0x1f80;
  static constexpr unsigned kFlags = 0x3f;  // what has happened so far, not how to compute
  void set(unsigned state) const {
    if ((before_ & ~kFlags) == kPlain)
      return;
    asm volatile("" ::: "memory");
    _mm_setcsr(state);
    asm volatile("" ::: "memory");
  }
  unsigned before_;
#elif defined(__aarch64__)
  PlainArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    set(0);
  }
  ~PlainArithmetic() { set(before_); }

 private:
  void set(uint64_t state) const {
    if (before_ != 0)
      asm volatile("msr fpcr, %0" ::"r"(state) : "memory");
  }
  uint64_t before_;
#endif
};

template <class T, class Operation>
void reduce_two(T* to, const T* a, const T* b, size_t count) {
#ifndef __clang__  // clang compares the addresses at run time
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < count; ++i)
    to[i] = Operation::of(a[i], b[i]);
}

template <class Operation, class T>
void add_block(T* sum, const T* values, size_t size) {
  for (size_t i = 0; i < size; ++i)
    sum[i] = Operation::of(sum[i], values[i]);
}

template <class T, class Operation, bool average>
void reduce(void* out, const void* const* in, int sources, size_t count) {
  [[maybe_unused]] const PlainArithmetic plain;
  using S = typename Sum<T>::Type;
  T* const to = static_cast<T*>(out);
  if constexpr (kSame<T, S> && !average) {
    if (sources == 2)  // no detour over a block
      return reduce_two<T, Operation>(
          to, static_cast<const T*>(in[0]), static_cast<const T*>(in[1]), count);
  }
  alignas(64) S sum[kBlock];
  alignas(64) S next[kSame<T, S> ? 1 : kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t size = count - start < kBlock ? count - start : kBlock;
    Sum<T>::load(sum, static_cast<const T*>(in[0]) + start, size);
    for (int source = 1; source < sources; ++source) {
      const T* const values = static_cast<const T*>(in[source]) + start;
      if constexpr (kSame<T, S>) {
        add_block<Operation>(sum, values, size);
      } else {
        Sum<T>::load(next, values, size);
        add_block<Operation>(sum, next, size);
      }
    }
    if constexpr (average)
      divide(sum, size, sources);
    Sum<T>::store(to + start, sum, size);
  }
}

template <class T>
Reduce number(Op op) {
  switch (op) {
    case Op::sum:
      return reduce<T, Add, false>;
    case Op::product:
      return reduce<T, Multiply, false>;
    case Op::min:
      return reduce<T, Least, false>;
    case Op::max:
      return reduce<T, Greatest, false>;
    default:
      return nullptr;
  }
}

template <class T>
Reduce real(Op op) {
  return op == Op::avg ? static_cast<Reduce>(reduce<T, Add, true>) : number<T>(op);
}

template <class T>
Reduce whole(Op op) {
  switch (op) {
    case Op::band:
      return reduce<T, BitAnd, false>;
    case Op::bor:
      return reduce<T, BitOr, false>;
    case Op::bxor:
      return reduce<T, BitXor, false>;
    default:
      return number<T>(op);
  }
}

template <class T>
Reduce complex(Op op) {
  switch (op) {
    case Op::sum:
      return reduce<Complex<T>, Add, false>;
    case Op::product:
      return reduce<Complex<T>, Multiply, false>;
    case Op::avg:
      return reduce<Complex<T>, Add, true>;
    default:
      return nullptr;
  }
}

Reduce kernel(Type type, Op op) {
  switch (type) {
    case Type::f64:
      return real<double>(op);
    case Type::f32:
      return real<float>(op);
    case Type::bf16:
      return real<BFloat16>(op);
    case Type::f16:
      return real<Half>(op);
    case Type::i8:
      return whole<int8_t>(op);
    case Type::u8:
      return whole<uint8_t>(op);
    case Type::i16:
      return whole<int16_t>(op);
    case Type::i32:
      return whole<int32_t>(op);
    case Type::i64:
      return whole<int64_t>(op);
    case Type::boolean:
      return whole<Bool>(op);
    case Type::c64:
      return complex<float>(op);
    case Type::c128:
      return complex<double>(op);
    case Type::other:
      break;
  }
  return nullptr;
}

}  // namespace
}  // namespace muster::shm
