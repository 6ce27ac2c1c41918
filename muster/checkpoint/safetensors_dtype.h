// LibTorch's dtypes by the names that safetensors files have for them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "muster/base/lists.h"
#include "muster/checkpoint/files/safetensors_header.h"

namespace muster {

// The format's name of a dtype ("F32", "BF16", ...), or nothing when it has none.
std::optional<std::string> safetensors_dtype(c10::ScalarType dtype);

// The other way round, for a name that parse_safetensors_header lets pass.
c10::ScalarType scalar_type_of(const TensorEntry& entry);

// The entry that a head has for such a tensor, without its place. A dtype that the format lacks has
// LibTorch's name.
TensorEntry tensor_entry(c10::ScalarType dtype, Int64s shape);

}  // namespace muster
