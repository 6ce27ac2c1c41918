// The memory of a contiguous CPU tensor as bytes in a text, for what travels or is kept as text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>
#include <string_view>

namespace muster {

// The view is valid as long as the tensor's memory.
inline std::string_view bytes_as_text(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// `bytes` is as long as the tensor's memory.
inline void copy_bytes(std::string_view bytes, const at::Tensor& tensor) {
  if (!bytes.empty())
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
}

}  // namespace muster
