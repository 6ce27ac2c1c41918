// safetensors files: named tensors, without executable content. Compatible with Python's
// safetensors in both directions. Called by checkpoint.h; can be used on its own to exchange
// weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "muster/base/tensors.h"
#include "muster/checkpoint/files/durable_file.h"
#include "muster/checkpoint/files/safetensors_file.h"
#include "muster/checkpoint/files/safetensors_header.h"
#include "muster/checkpoint/safetensors_dtype.h"

namespace muster {

class Peers;

// Throws: invalid_argument for a tensor that no file can have, such as a sparse one, and for
// complex numbers of 64 bits.
void require_savable(const std::string& name, const Tensor& tensor);

// Reads the tensor into a contiguous CPU tensor of the entry's type and shape.
void read_tensor_into(const Tensor& tensor,
                      const SafetensorsFile& file,
                      const std::string& name,
                      const TensorEntry& entry);

// `into`, if the entry can be read into it; else a new tensor.
Tensor room_for(const TensorEntry& entry, const Tensor& into);

// Throws: invalid_argument for a bool other than 0 and 1, which would be undefined behaviour later.
// `path` is where it was read.
void check_bools(const std::string& path, const std::string& name, const Tensor& tensor);

// Writes a new file durably, with tensors aligned to their element size. Tensors may be on any
// device and have any strides; those that share memory are each written. Throws: io if the file
// exists or cannot be written; invalid_argument for a sparse, quantized or undefined tensor, a
// dtype that the format lacks, or a bad name.
WrittenFile write_safetensors(const std::string& folder,
                              const std::string& name,
                              const NamedTensors& tensors,
                              const Metadata& metadata = {});

// The head that write_safetensors writes for `tensors`; its data_bytes is the size of the data
// after it.
SafetensorsHead make_safetensors_head(const NamedTensors& tensors, const Metadata& metadata = {});

// Gives every rank rank 0's head. Collective: yes.
void share_head(SafetensorsHead& head, const Peers& peers);

// Calls `read` with each of the entries whose name begins with `prefix`, and the tensor in `into`
// that has its name without that. Returns what it returns, by these names.
NamedTensors read_below(
    const std::string& prefix,
    const TensorEntries& entries,
    const NamedTensors& into,
    const std::function<Tensor(const std::string&, const TensorEntry&, const Tensor& old)>& read);

}  // namespace muster
