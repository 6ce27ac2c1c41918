// A whole safetensors file as tensors.
#pragma once

#include <string>

#include "muster/base/tensors.h"
#include "muster/checkpoint/safetensors.h"

namespace muster {

struct SafetensorsContent {
  NamedTensors tensors = {};  // on the CPU, contiguous, with their own memory
  Metadata metadata = {};
};

// Throws: io if it cannot be read; invalid_argument if it is malformed or truncated.
inline SafetensorsContent read_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  const SafetensorsHeader header = file.header();
  SafetensorsContent content{.metadata = header.metadata};
  for (const auto& [name, entry] : header.tensors) {
    const Tensor tensor = room_for(entry, {});
    read_tensor_into(tensor, file, name, entry);
    content.tensors[name] = tensor;
  }
  return content;
}

}  // namespace muster
