// The head of a safetensors file: which tensors it holds and where. Parsed strictly, because
// checkpoints come from anywhere. Called by safetensors.h, by load, which sends a head to the other
// ranks, and by whoever looks at a file without LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

using Metadata = StringMap;

struct TensorEntry {
  std::string dtype = "F32";  // the format's name
  Int64s shape;
  uint64_t begin = 0;  // in the data, which follows the head
  uint64_t end = 0;

  bool same_kind(const TensorEntry& other) const {
    return dtype == other.dtype && shape == other.shape;
  }
};

// "F32[16, 3, 5, 5]".
std::string to_string(const TensorEntry& entry);

using TensorEntries = std::map<std::string, TensorEntry>;

struct SafetensorsHeader {
  TensorEntries tensors{};
  Metadata metadata{};
};

// Gives the tensors their places, one after the other: widest elements first, so that each is
// aligned to its element size. Returns the bytes of all.
uint64_t lay_out(SafetensorsHeader& header);

using PlacedTensors = std::vector<std::pair<std::string, TensorEntry>>;

// In the order of their data.
PlacedTensors tensors_by_place(const SafetensorsHeader& header);

// The bytes of an element of the dtype that the format calls so ("F32", "BF16", ...); 0: it has
// none such. Several elements of F4 and F6 share a byte: for them it is 1.
uint64_t safetensors_element_size(std::string_view dtype);

// Whether an element has bytes of its own.
bool has_whole_elements(std::string_view dtype);

// For a tensor of a parsed head: its bytes, and how many pieces of safetensors_element_size() these
// are.
uint64_t tensor_bytes(const TensorEntry& entry);
int64_t tensor_units(const TensorEntry& entry);

// Parses the JSON text of a head. Refuses what is no plain safetensors head: duplicate or unknown
// keys, deeper nesting, unknown dtypes, sizes that overflow or differ from their extent, and
// extents that overlap, leave a hole or do not end at `data_bytes`. `name` is what messages call
// the file. Throws: invalid_argument. Source: the safetensors format,
// https://github.com/huggingface/safetensors#format
SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           uint64_t data_bytes,
                                           const std::string& name);

// The JSON text for `header`, filled with blanks to a multiple of 8.
// Throws: invalid_argument when a name is not UTF-8 or is "__metadata__".
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace muster
