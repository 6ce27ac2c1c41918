// Tensors that lie in one safetensors file, or in the files of several ranks, under other names in a file of
// their own. Called by
// `muster checkpoint export`; without LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "muster/checkpoint/tensor_source.h"

namespace muster {

struct ExportOptions {
  std::string strip = {};   // taken from the beginning of the names that begin so
  std::string prefix = {};  // put before every name, after that
  bool replace = false;     // a plain file of that name
};

// Writes `path` durably, whole or not at all; returns how many tensors. `on_bytes` is told how many more
// bytes have been copied. Throws: io; unavailable without space; invalid_argument when `path` exists and is
// not to be replaced, two tensors would have one name, or one is not whole.
size_t export_tensors(const TensorSource& from, const std::string& path, const ExportOptions& options = {},
                      const std::function<void(size_t)>& on_bytes = {});

}  // namespace muster
