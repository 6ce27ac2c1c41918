#include "muster/checkpoint/files/diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace muster {

namespace {

constexpr int64_t kPieceBytes = 1 << 20;

// Sign, exponent and fraction of a half, as a float has them.
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

float from_bfloat(uint16_t brain) {
  return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16U);
}

template <class T>
double distance(T a, T b) {
  return std::fabs(static_cast<double>(a) - static_cast<double>(b));
}
// Of whole numbers without a loss: doubles do not have all of 64 bits.
template <std::integral T>
double distance(T a, T b) {
  const auto low = static_cast<uint64_t>(std::min(a, b)),
             high = static_cast<uint64_t>(std::max(a, b));
  return static_cast<double>(high - low);
}

// Counts what differs in two pieces of elements, and keeps the largest distance; NAN stays.
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
  // A type without a distance.
  void add_bits(const char* a, const char* b, uint64_t size, uint64_t element) {
    for (uint64_t at = 0; at < size; at += element)
      count += std::memcmp(a + at, b + at, element) != 0 ? 1 : 0;
    largest = NAN;
  }
};

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

Differences compare_tensor(const std::string& name,
                           const TensorEntry& kind,
                           const TensorSource& first,
                           const TensorSource& second,
                           const std::function<void(size_t)>& on_bytes) {
  Differences found;
  const auto element = static_cast<int64_t>(safetensors_element_size(kind.dtype));
  const int64_t count = tensor_units(kind), at_once = kPieceBytes / element;
  std::string a(static_cast<size_t>(std::min(count, at_once) * element), '\0'), b = a;
  for (int64_t at = 0; at < count; at += at_once) {
    const Elements piece = {{.begin = at, .length = std::min(at_once, count - at)}};
    const auto size = static_cast<size_t>(piece[0].length * element);
    first.read(name, piece, a.data());
    second.read(name, piece, b.data());
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

TensorsDifference compare_tensors(const TensorSource& first,
                                  const TensorSource& second,
                                  const std::function<void(size_t)>& on_bytes) {
  using Kind = TensorDifference::Kind;
  TensorsDifference result;
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
    } else if (const auto there = compare_tensor(name, tensor.kind, first, second, on_bytes);
               there.count > 0) {
      note(name, Kind::other_values, mine, mine);
      result.tensors.back().different = there.count;
      if (!std::isnan(there.largest))
        result.tensors.back().largest = there.largest;
    } else {
      ++result.equal;
    }
  }
  for (const auto& [name, tensor] : second.tensors())
    if (!first.contains(name))
      note(name, Kind::only_in_second, "", to_string(tensor.kind));
  return result;
}

}  // namespace muster
