// Writes the tensors of one safetensors file, or of several ranks' files, to a new file, optionally
// under other names. Called by `muster checkpoint export`; without LibTorch.
#pragma once

#include <cstddef>
#include <string>

#include "muster/checkpoint/files/sha256.h"
#include "muster/checkpoint/files/tensor_source.h"

namespace muster {

struct ExportOptions {
  std::string strip{};   // removed from names that start with it
  std::string prefix{};  // then added to every name
  bool replace = false;  // replace an existing plain file
};

// Writes `path` durably, completely or not at all; returns the number of tensors. `on_bytes` gets
// the number of bytes copied since its last call. Throws: io; unavailable if there is no space;
// invalid_argument if `path` exists and must not be replaced, if two tensors would have one name,
// or if one is incomplete.
size_t export_tensors(const TensorSource& from,
                      const std::string& path,
                      const ExportOptions& options = {},
                      const OnBytes& on_bytes = {});

}  // namespace muster
