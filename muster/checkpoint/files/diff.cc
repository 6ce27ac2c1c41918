// Two tensors of one type and shape are read piece by piece and compared by their bits. Only
// elements whose bits differ are decoded, to find the largest distance. Half and bfloat have no
// type in C++ here, so they are decoded by hand.
#include "muster/checkpoint/files/diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

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

// Compares pieces of `size` bytes whose elements have the type `dtype`.
void add_piece(
    Differences& to, const std::string& dtype, const char* a, const char* b, uint64_t size) {
  if (dtype == "F64")
    return to.add<double>(a, b, size);
  if (dtype == "F32")
    return to.add<float>(a, b, size);
  if (dtype == "F16")
    return to.add<uint16_t>(a, b, size, from_half);
  if (dtype == "BF16")
    return to.add<uint16_t>(a, b, size, from_bfloat);
  if (dtype == "I64")
    return to.add<int64_t>(a, b, size);
  if (dtype == "U64")
    return to.add<uint64_t>(a, b, size);
  if (dtype == "I32")
    return to.add<int32_t>(a, b, size);
  if (dtype == "U32")
    return to.add<uint32_t>(a, b, size);
  if (dtype == "I16")
    return to.add<int16_t>(a, b, size);
  if (dtype == "U16")
    return to.add<uint16_t>(a, b, size);
  if (dtype == "I8")
    return to.add<int8_t>(a, b, size);
  if (dtype == "U8")
    return to.add<uint8_t>(a, b, size);
  to.add_bits(a, b, size, safetensors_element_size(dtype));
}

// Compares a tensor that both have, in pieces of about a MiB.
Differences compare_tensor(const std::string& name,
                           const TensorEntry& kind,
                           const TensorSource& first,
                           const TensorSource& second,
                           const std::function<void(size_t)>& on_bytes) {
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
  switch (kind) {
    case TensorDifference::Kind::only_in_first:
      return "only in A";
    case TensorDifference::Kind::only_in_second:
      return "only in B";
    case TensorDifference::Kind::other_kind:
      return "other type or shape";
    default:
      return "other values";
  }
}

// Tensors come in the order of their names, those that only B has last.
TensorsDifference compare_tensors(const TensorSource& first,
                                  const TensorSource& second,
                                  const std::function<void(size_t)>& on_bytes) {
  using Kind = TensorDifference::Kind;
  TensorsDifference result;
  // Appends a row; `a` and `b` are the two kinds.
  const auto note =
      [&](const std::string& name, Kind kind, const std::string& a, const std::string& b) {
        result.tensors.push_back({.name = name,
                                  .kind = kind,
                                  .first = a,
                                  .second = b,
                                  .different = 0,
                                  .largest = std::nullopt});
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
