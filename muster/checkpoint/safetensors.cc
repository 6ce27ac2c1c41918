// A file is eight bytes with the head's length, the head in JSON, and the tensors' bytes. The
// layout is decided before anything is written, so the head of a file can be known without the
// file.
#include "muster/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <cstdint>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/peers.h"

namespace muster {

namespace {

// The format has dense tensors alone, and not every type that LibTorch knows.
bool can_be_saved(const Tensor& tensor) {
  const bool is_dense = tensor.defined() && tensor.layout() == kStrided && !tensor.is_quantized();
  return is_dense && safetensors_dtype(tensor.scalar_type());
}

// Of complex numbers the format has those of 32 bits, and the parts of all of them.
const char* way_to_save(const Tensor& tensor) {
  return tensor.defined() && tensor.is_complex()
             ? "keep torch::view_as_real(it) in the module, and compute with "
               "torch::view_as_complex of that, or take ComplexFloat"
             : "convert it before it is saved, as by to_dense() or dequantize()";
}

// The head of a file of these tensors, which have no places in it yet.
SafetensorsHeader savable_header(const NamedTensors& tensors, const Metadata& metadata) {
  for (const auto& [name, tensor] : tensors)
    require_savable(name, tensor);
  return {.tensors = entries_of(tensors), .metadata = metadata};
}

}  // namespace

void require_savable(const std::string& name, const Tensor& tensor) {
  if (can_be_saved(tensor))
    return;
  throw invalid_argument("safetensors: expected a dense tensor of a common dtype as '",
                         name,
                         "', got ",
                         tensor.defined() ? tensor.toString() : std::string("an undefined one"),
                         "; ",
                         way_to_save(tensor));
}

void read_tensor_into(const Tensor& tensor,
                      const SafetensorsFile& file,
                      const std::string& name,
                      const TensorEntry& entry) {
  file.read(tensor.mutable_data_ptr(), entry.end - entry.begin, entry.begin);
  check_bools(file.path(), name, tensor);
}

Tensor room_for(const TensorEntry& entry, const Tensor& into) {
  const ScalarType type = scalar_type_of(entry);
  const bool fits = into.defined() && into.is_cpu() && into.is_contiguous() &&
                    into.scalar_type() == type && into.sizes() == entry.shape;
  return fits ? into : at::empty(entry.shape, type);
}

// LibTorch computes with a bool's byte, so another byte than 0 and 1 would be undefined behaviour.
void check_bools(const std::string& path, const std::string& name, const Tensor& tensor) {
  if (tensor.scalar_type() != kBool || tensor.numel() == 0)
    return;
  if (tensor.view(kByte).max().item<uint8_t>() <= 1)
    return;
  throw invalid_argument("weights: expected a valid file in '",
                         path,
                         "', got a BOOL tensor '",
                         name,
                         "' with other bytes than 0 and 1; it is damaged or of another kind");
}

SafetensorsHead make_safetensors_head(const NamedTensors& tensors, const Metadata& metadata) {
  SafetensorsHeader header = savable_header(tensors, metadata);
  const uint64_t data_bytes = lay_out(header);
  return {format_safetensors_header(header), data_bytes};
}

// Tensors are brought to the CPU one at a time, so that a model on a GPU needs no second copy.
WrittenFile write_safetensors(const std::string& folder,
                              const std::string& name,
                              const NamedTensors& tensors,
                              const Metadata& metadata) {
  SafetensorsHeader header = savable_header(tensors, metadata);
  lay_out(header);
  const auto json = format_safetensors_header(header);
  if (json.size() > kMaxHeadBytes) {
    throw invalid_argument("safetensors: expected a header of at most ",
                           kMaxHeadBytes,
                           " bytes, got ",
                           json.size(),
                           "; save fewer tensors in a file");
  }
  DurableFile file(folder, name);
  const uint64_t head_bytes = json.size();
  file.write(&head_bytes, sizeof(head_bytes));
  file.write(json);
  for (const auto& [tensor_name, entry] : tensors_by_place(header)) {
    const auto bytes = tensors.at(tensor_name).detach().cpu().contiguous();
    file.write(bytes.const_data_ptr(), bytes.nbytes());
  }
  return file.finish();
}

void share_head(SafetensorsHead& head, const Peers& peers) {
  auto data_bytes = cat(head.data_bytes);
  for (std::string* text : {&head.json, &data_bytes})
    peers.share(*text);
  head.data_bytes = std::stoull(data_bytes);
}

NamedTensors read_below(
    const std::string& prefix,
    const TensorEntries& entries,
    const NamedTensors& into,
    const std::function<Tensor(const std::string&, const TensorEntry&, const Tensor& old)>& read) {
  NamedTensors tensors;
  for (const auto& [name, entry] : entries) {
    if (!name.starts_with(prefix))
      continue;
    const auto own = name.substr(prefix.size());
    tensors[own] = read(name, entry, find_or(into, own));
  }
  return tensors;
}

}  // namespace muster
