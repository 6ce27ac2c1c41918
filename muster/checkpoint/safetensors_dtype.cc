// The types of elements that both safetensors and LibTorch know. The format has others (F4, F6),
// which are copied from file to file but never become a tensor.
#include "muster/checkpoint/safetensors_dtype.h"

#include <array>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

constexpr std::array<std::pair<const char*, ScalarType>, 17> kDtypes = {{
    {"BOOL", ScalarType::Bool},
    {"U8", ScalarType::Byte},
    {"I8", ScalarType::Char},
    {"U16", ScalarType::UInt16},
    {"I16", ScalarType::Short},
    {"U32", ScalarType::UInt32},
    {"I32", ScalarType::Int},
    {"U64", ScalarType::UInt64},
    {"I64", ScalarType::Long},
    {"F8_E4M3", ScalarType::Float8_e4m3fn},
    {"F8_E5M2", ScalarType::Float8_e5m2},
    {"F8_E8M0", ScalarType::Float8_e8m0fnu},
    {"F16", ScalarType::Half},
    {"BF16", ScalarType::BFloat16},
    {"F32", ScalarType::Float},
    {"F64", ScalarType::Double},
    {"C64", ScalarType::ComplexFloat},
}};

}  // namespace

std::optional<std::string> safetensors_dtype(ScalarType dtype) {
  for (const auto& [name, known] : kDtypes)
    if (known == dtype)
      return name;
  return std::nullopt;
}

// Throws: invalid_argument for F4 and F6, which LibTorch does not compute with.
ScalarType scalar_type_of(const TensorEntry& entry) {
  for (const auto& [name, dtype] : kDtypes)
    if (name == entry.dtype)
      return dtype;
  throw invalid_argument("safetensors: expected elements that LibTorch computes with, got ",
                         to_string(entry),
                         "; leave the tensor out, or convert it");
}

// A type that the format lacks keeps LibTorch's name, for messages.
TensorEntry tensor_entry(ScalarType dtype, Int64s shape) {
  return {.dtype = safetensors_dtype(dtype).value_or(c10::toString(dtype)),
          .shape = std::move(shape),
          .begin = 0,
          .end = 0};
}

}  // namespace muster
