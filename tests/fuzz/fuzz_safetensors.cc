#include <algorithm>
#include <cstdlib>
#include <vector>

#include "muster/checkpoint/files/safetensors_file.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/scratch_file.h"

namespace muster {

namespace {

constexpr int64_t kMostElements = 1 << 16;

// What is said to be there is in the file, and can be read.
void check_tensors(const SafetensorsHeader& header, uint64_t data_bytes) {
  for (const auto& [name, entry] : header.tensors) {
    if (entry.begin > entry.end || entry.end > data_bytes)
      std::abort();
    if (entry.end - entry.begin != tensor_bytes(entry))
      std::abort();
  }
}

void check_source(const TensorSource& source) {
  const auto incomplete = source.incomplete();
  for (const auto& [name, tensor] : source.tensors()) {
    const int64_t total = tensor_units(tensor.kind);
    for (const StoredPiece& piece : tensor.pieces)
      if (!wrong_elements(piece.elements, total).empty())
        std::abort();
    if (total > kMostElements)
      continue;
    std::vector<char> bytes(static_cast<size_t>(total) *
                            safetensors_element_size(tensor.kind.dtype));
    const bool is_whole = std::find(incomplete.begin(), incomplete.end(), name) == incomplete.end();
    try {
      source.read(name, all_elements({total}), bytes.data());
      if (!is_whole)
        std::abort();
    } catch (const Error&) {
      if (is_whole)
        throw;
    }
  }
}

void check_file(const std::string& bytes) {
  const ScratchFile scratch(bytes);
  const SafetensorsFile file(scratch.path());
  const SafetensorsHeader header = file.header();
  check_tensors(header, file.head().data_bytes);
  const auto again =
      parse_safetensors_header(format_safetensors_header(header), file.head().data_bytes, "fuzz");
  if (again.tensors.size() != header.tensors.size() || again.metadata != header.metadata)
    std::abort();
  check_source(TensorSource({scratch.path()}));
}

std::string with_length(const std::string& head, size_t data_bytes) {
  const uint64_t length = head.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes + head + std::string(data_bytes, '\1');
}

}  // namespace

// As a file, and as the head of one: its own length, at which a fuzzer would not arrive, goes
// before it.
void fuzz_safetensors(const std::string& text) {
  answer_or_error([&] { check_file(text); });
  const size_t data = text.empty() ? 0 : static_cast<unsigned char>(text[0]);
  answer_or_error([&] { check_file(with_length(text.empty() ? text : text.substr(1), data)); });
}

}  // namespace muster
