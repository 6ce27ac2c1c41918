// Two tensors of one type and shape are read piece by piece and compared by their bits. Only
// elements whose bits differ are decoded, to find the largest distance. Half and bfloat have no
// type in C++ here, so they are decoded by hand.
#include "muster/checkpoint/files/diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <string_view>
#include <utility>

#include "muster/base/lookup.h"

namespace muster {

namespace {

constexpr int64_t kPieceBytes = 1 << 20;

// A half has a sign, five bits of exponent and ten of fraction. The exponent 0 stands for subnormal
// numbers, and the largest one for infinities and NaN.
float from_half(uint16_t half) {
  const float sign = (half & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = (half >> 10U) & 0x1f;
  const auto fraction = static_cast<float>(half & 0x3ffU);
  if (exponent == 0x1f)
    return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0)
    return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024, exponent - 25);
}

// A bfloat is the upper half of a float.
float from_bfloat(uint16_t brain) {
  const uint32_t bits = brain;
  return std::bit_cast<float>(bits << 16U);
}

double distance(double a, double b) {
  return std::fabs(a - b);
}
// Doubles do not have all of 64 bits, so whole numbers are subtracted as such. The difference fits
// into an unsigned number, whatever the signs are.
template <std::integral T>
double distance(T a, T b) {
  const uint64_t low = std::min(a, b), high = std::max(a, b);
  return static_cast<double>(high - low);
}

// Counts the elements that differ in two pieces, and keeps the largest distance. A NaN stays.
struct Differences {
  uint64_t count = 0;
  double largest = 0;

  template <class T, class Value>
  void add(const char* a, const char* b, uint64_t size, const Value& value) {
    for (uint64_t at = 0; at < size; at += sizeof(T)) {
      if (std::memcmp(a + at, b + at, sizeof(T)) == 0)
        continue;
      ++count;
      T x, y;
      std::memcpy(&x, a + at, sizeof(T));
      std::memcpy(&y, b + at, sizeof(T));
      const double far = distance(value(x), value(y));
      if (std::isnan(far) || far > largest)
        largest = std::isnan(largest) ? largest : far;
    }
  }
  template <class T>
  void add(const char* a, const char* b, uint64_t size) {
    add<T>(a, b, size, [](T x) { return x; });
  }
  // For types without a distance.
  void add_bits(const char* a, const char* b, uint64_t size, uint64_t element) {
    for (uint64_t at = 0; at < size; at += element)
      count += std::memcmp(a + at, b + at, element) != 0 ? 1 : 0;
    largest = NAN;
  }
};

using AddPiece = void (*)(Differences&, const char*, const char*, uint64_t);

template <class T>
void add_numbers(Differences& to, const char* a, const char* b, uint64_t size) {
  to.add<T>(a, b, size);
}
template <float (*kDecoded)(uint16_t)>
void add_halves(Differences& to, const char* a, const char* b, uint64_t size) {
  to.add<uint16_t>(a, b, size, kDecoded);
}

constexpr std::pair<std::string_view, AddPiece> kAdders[] = {
    {"F64", &add_numbers<double>},
    {"F32", &add_numbers<float>},
    {"F16", &add_halves<from_half>},
    {"BF16", &add_halves<from_bfloat>},
    {"I64", &add_numbers<int64_t>},
    {"U64", &add_numbers<uint64_t>},
    {"I32", &add_numbers<int32_t>},
    {"U32", &add_numbers<uint32_t>},
    {"I16", &add_numbers<int16_t>},
    {"U16", &add_numbers<uint16_t>},
    {"I8", &add_numbers<int8_t>},
    {"U8", &add_numbers<uint8_t>},
};

// Compares pieces of `size` bytes whose elements have the type `dtype`.
void add_piece(
    Differences& to, const std::string& dtype, const char* a, const char* b, uint64_t size) {
  if (const AddPiece add = lookup(kAdders, dtype, nullptr))
    return add(to, a, b, size);
  to.add_bits(a, b, size, safetensors_element_size(dtype));
}

// Compares a tensor that both have, in pieces of about a MiB.
Differences compare_tensor(const std::string& name,
                           const TensorEntry& kind,
                           const TensorSource& first,
                           const TensorSource& second,
                           const OnBytes& on_bytes) {
  Differences found;
  const auto element = static_cast<int64_t>(safetensors_element_size(kind.dtype));
  const int64_t count = tensor_units(kind), at_once = kPieceBytes / element;
  std::string a(std::min(count, at_once) * element, '\0'), b = a;
  for (int64_t at = 0; at < count; at += at_once) {
    const int64_t length = std::min(at_once, count - at);
    const size_t size = length * element;
    first.read(name, {{.begin = at, .length = length}}, a.data());
    second.read(name, {{.begin = at, .length = length}}, b.data());
    if (std::memcmp(a.data(), b.data(), size) != 0)
      add_piece(found, kind.dtype, a.data(), b.data(), size);
    if (on_bytes)
      on_bytes(2 * size);
  }
  return found;
}

}  // namespace

const char* to_string(TensorDifference::Kind kind) {
  using Kind = TensorDifference::Kind;
  constexpr std::pair<Kind, const char*> kNames[] = {{Kind::only_in_first, "only in A"},
                                                     {Kind::only_in_second, "only in B"},
                                                     {Kind::other_kind, "other type or shape"}};
  return lookup(kNames, kind, "other values");
}

// Tensors come in the order of their names, those that only B has last.
TensorsDifference compare_tensors(const TensorSource& first,
                                  const TensorSource& second,
                                  const OnBytes& on_bytes) {
  using Kind = TensorDifference::Kind;
  TensorsDifference result;
  // Appends a row; `a` and `b` are the two kinds.
  const auto note =
      [&](const std::string& name, Kind kind, const std::string& a, const std::string& b) {
        result.tensors.push_back({.name = name, .kind = kind, .first = a, .second = b});
      };
  for (const auto& [name, tensor] : first.tensors()) {
    const auto found = second.tensors().find(name);
    const std::string mine = to_string(tensor.kind);
    if (found == second.tensors().end()) {
      note(name, Kind::only_in_first, mine, "");
    } else if (!tensor.kind.same_kind(found->second.kind)) {
      note(name, Kind::other_kind, mine, to_string(found->second.kind));
    } else {
      const Differences there = compare_tensor(name, tensor.kind, first, second, on_bytes);
      if (there.count == 0) {
        ++result.equal;
        continue;
      }
      note(name, Kind::other_values, mine, mine);
      result.tensors.back().different = there.count;
      if (!std::isnan(there.largest))
        result.tensors.back().largest = there.largest;
    }
  }
  for (const auto& [name, tensor] : second.tensors())
    if (!first.contains(name))
      note(name, Kind::only_in_second, "", to_string(tensor.kind));
  return result;
}

}  // namespace muster
