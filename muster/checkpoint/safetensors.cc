// A file is eight bytes with the head's length, the head in JSON, and the tensors' bytes. The
// layout is decided before anything is written, so the head of a file can be known without the
// file.
#include "muster/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// The format has dense tensors alone, and not every type that LibTorch knows.
bool can_be_saved(const Tensor& tensor) {
  const bool is_dense =
      tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized();
  return is_dense && safetensors_dtype(tensor.scalar_type());
}

// Of complex numbers the format has those of 32 bits, and the parts of all of them.
const char* way_to_save(const Tensor& tensor) {
  return tensor.defined() && tensor.is_complex()
             ? "keep torch::view_as_real(it) in the module, and compute with "
               "torch::view_as_complex of that, or take ComplexFloat"
             : "convert it before it is saved, as by to_dense() or dequantize()";
}

// Places the tensors one after the other, widest elements first, so that each is aligned to its
// element size.
SafetensorsHeader lay_out(const NamedTensors& tensors, const Metadata& metadata) {
  std::vector<const NamedTensors::value_type*> order;
  for (const auto& item : tensors) {
    require_savable(item.first, item.second);
    order.push_back(&item);
  }
  std::ranges::stable_sort(
      order, std::greater(), [](const auto* item) { return item->second.element_size(); });
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  uint64_t at = 0;
  for (const auto* item : order) {
    const auto& [name, tensor] = *item;
    TensorEntry entry = tensor_entry(tensor.scalar_type(), tensor.sizes().vec());
    entry.begin = at;
    at += tensor.numel() * tensor.element_size();
    entry.end = at;
    header.tensors.emplace(name, std::move(entry));
  }
  return header;
}

// The data ends where the last tensor does.
uint64_t data_bytes_of(const SafetensorsHeader& header) {
  uint64_t bytes = 0;
  for (const auto& [name, entry] : header.tensors)
    bytes = std::max(bytes, entry.end);
  return bytes;
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

SafetensorsContent read_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  auto header = file.header();
  SafetensorsContent content{.tensors = {}, .metadata = std::move(header.metadata)};
  for (const auto& [name, entry] : header.tensors)
    content.tensors.emplace(name, read_tensor(file, name, entry));
  return content;
}

Tensor read_tensor(const SafetensorsFile& file, const std::string& name, const TensorEntry& entry) {
  Tensor tensor = at::empty(entry.shape, scalar_type_of(entry));
  read_tensor_into(tensor, file, name, entry);
  return tensor;
}

void read_tensor_into(const Tensor& tensor,
                      const SafetensorsFile& file,
                      const std::string& name,
                      const TensorEntry& entry) {
  file.read(tensor.mutable_data_ptr(), entry.end - entry.begin, entry.begin);
  check_bools(file.path(), name, tensor);
}

Tensor room_for(const std::string& name, const TensorEntry& entry, const NamedTensors& into) {
  const at::ScalarType type = scalar_type_of(entry);
  const auto fits = [&](const Tensor& tensor) {
    const bool is_plain = tensor.device().is_cpu() && tensor.is_contiguous();
    return is_plain && tensor.scalar_type() == type && tensor.sizes() == entry.shape;
  };
  const Tensor* const found = value_at(into, name);
  if (found != nullptr && fits(*found))
    return *found;
  return at::empty(entry.shape, type);
}

// LibTorch computes with a bool's byte, so another byte than 0 and 1 would be undefined behaviour.
void check_bools(const std::string& path, const std::string& name, const Tensor& tensor) {
  if (tensor.scalar_type() != at::kBool || tensor.numel() == 0)
    return;
  if (tensor.view(at::kByte).max().item<uint8_t>() <= 1)
    return;
  throw invalid_argument("weights: expected a valid file in '",
                         path,
                         "', got a BOOL tensor '",
                         name,
                         "' with other bytes than 0 and 1; it is damaged or of another kind");
}

SafetensorsHead make_safetensors_head(const NamedTensors& tensors, const Metadata& metadata) {
  const auto header = lay_out(tensors, metadata);
  return {format_safetensors_header(header), data_bytes_of(header)};
}

// Tensors are brought to the CPU one at a time, so that a model on a GPU needs no second copy.
WrittenFile write_safetensors(const std::string& folder,
                              const std::string& name,
                              const NamedTensors& tensors,
                              const Metadata& metadata) {
  const auto header = lay_out(tensors, metadata);
  const auto json = format_safetensors_header(header);
  if (json.size() > kMaxHeadBytes) {
    throw invalid_argument("safetensors: expected a header of at most ",
                           kMaxHeadBytes,
                           " bytes, got ",
                           json.size(),
                           "; save fewer tensors in a file");
  }
  std::vector<std::pair<uint64_t, std::string>> order;  // in the file
  for (const auto& [tensor, entry] : header.tensors)
    order.emplace_back(entry.begin, tensor);
  std::ranges::sort(order);

  DurableFile file(folder, name);
  const uint64_t head_bytes = json.size();
  file.write(&head_bytes, sizeof(head_bytes));
  file.write(json);
  for (const auto& [begin, tensor_name] : order) {
    const auto bytes = tensors.at(tensor_name).detach().cpu().contiguous();
    file.write(bytes.const_data_ptr(), bytes.nbytes());
  }
  return file.finish();
}

}  // namespace muster
