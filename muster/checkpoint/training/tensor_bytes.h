// The memory of a contiguous CPU tensor as bytes in a text, for what travels or is kept as text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/tensors.h"

namespace muster {

// The view is valid as long as the tensor's memory.
inline std::string_view bytes_as_text(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// `bytes` is as long as the tensor's memory.
inline void copy_bytes(std::string_view bytes, const Tensor& tensor) {
  if (!bytes.empty())
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
}

// Numbers and other plain values as such a text, and those that are in one.
template <class Value>
std::string text_of_values(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}
template <class Value>
std::vector<Value> values_in(std::string_view bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  if (!values.empty())
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(Value));
  return values;
}

}  // namespace muster
