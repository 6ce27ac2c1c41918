// safetensors files: named tensors, and nothing that executes. Python's safetensors reads what this writes,
// and the other way round. Called by checkpoint.h; good on its own to exchange weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "muster/checkpoint/durable_file.h"
#include "muster/checkpoint/safetensors_dtype.h"
#include "muster/checkpoint/safetensors_file.h"
#include "muster/checkpoint/safetensors_header.h"

namespace muster {

using NamedTensors = std::map<std::string, at::Tensor>;

struct SafetensorsContent {
  NamedTensors tensors;  // on the CPU, contiguous, with their own memory
  Metadata metadata;
};

// Reads a whole file. Throws: io when it cannot be read; invalid_argument when it breaks the format's rules
// (see parse_safetensors_header) or is cut short.
SafetensorsContent read_safetensors(const std::string& path);

// One tensor of an open file. Throws: as read_safetensors.
at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name, const TensorEntry& entry);

// The same, into a contiguous tensor on the CPU of the entry's type and shape.
void read_tensor_into(const at::Tensor& tensor, const SafetensorsFile& file, const std::string& name,
                      const TensorEntry& entry);

// The tensor of that name in `into` that the entry can be read into; else a new one.
at::Tensor room_for(const std::string& name, const TensorEntry& entry, const NamedTensors& into);

// A bool that is neither 0 nor 1 would be undefined behaviour later. `path` is where it was read. Throws:
// invalid_argument.
void check_bools(const std::string& path, const std::string& name, const at::Tensor& tensor);

// Writes a new file, durably, tensors aligned to their element size. Tensors may lie on any device and have
// any strides; those that share memory are written each.
// Throws: io when the file exists or cannot be written; invalid_argument for a sparse or quantized tensor, an
// undefined one, a dtype that the format lacks, or a bad name.
WrittenFile write_safetensors(const std::string& folder, const std::string& name, const NamedTensors& tensors,
                              const Metadata& metadata = {});

// The head that write_safetensors writes for `tensors`; its data_bytes are what is needed beside it.
SafetensorsHead make_safetensors_head(const NamedTensors& tensors, const Metadata& metadata = {});

}  // namespace muster
