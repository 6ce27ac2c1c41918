// The tensors of one safetensors file under other names in a file of their own. Called by
// `muster checkpoint export`; without LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "muster/checkpoint/safetensors_file.h"

namespace muster {

struct ExportOptions {
  std::string strip = {};   // taken from the beginning of the names that begin so
  std::string prefix = {};  // put before every name, after that
  bool replace = false;     // a plain file of that name
};

// Writes `path` durably, whole or not at all; returns how many tensors. `on_bytes` is told how many more
// bytes have been copied. Throws: io; unavailable without space; invalid_argument when `path` exists and is
// not to be replaced, or two tensors would have one name.
size_t export_tensors(const SafetensorsFile& from, const std::string& path, const ExportOptions& options = {},
                      const std::function<void(size_t)>& on_bytes = {});

}  // namespace muster
