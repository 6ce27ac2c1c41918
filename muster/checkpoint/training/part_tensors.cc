// Numbers become scalars of type double and texts vectors of bytes. Every part also has one number
// without a name, so that a part with an empty state can be seen in the file.
#include "muster/checkpoint/training/part_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "muster/base/tensors.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/training/tensor_bytes.h"

namespace muster {

namespace {

constexpr std::string_view kNumbers = "numbers/";
constexpr auto kTexts = "texts/";
constexpr auto kThere = "";                   // the number that every part has
constexpr auto kDescription = "description";  // of an optimizer's groups

Tensor bytes_of(const std::string& text) {
  const Tensor bytes = at::empty({std::ssize(text)}, kByte);
  copy_bytes(text, bytes);
  return bytes;
}

// Throws if the tensor has another type, as one of a damaged file may.
std::string text_of(const Tensor& bytes) {
  const Tensor here = bytes.contiguous();
  const uint8_t* const first = here.const_data_ptr<uint8_t>();
  return {first, first + here.numel()};
}

// A part's numbers are also the sign that it was saved.
std::string number_prefix(const std::string& part) {
  return cat(kNumbers, part, "/");
}

std::string text_prefix(const std::string& part) {
  return cat(kTexts, part, "/");
}

}  // namespace

std::string tensor_prefix(const std::string& part) {
  return cat(kPartTensors, part, "/");
}

void put_part(NamedTensors& into, const std::string& part, const SavedState& state) {
  for (const auto& [name, tensor] : state.tensors)
    into[tensor_prefix(part) + name] = tensor;
  for (const auto& [name, text] : state.texts)
    into[text_prefix(part) + name] = bytes_of(text);
  for (const auto& [name, number] : state.numbers)
    into[number_prefix(part) + name] = at::scalar_tensor(number, kDouble);
  into[number_prefix(part) + kThere] = at::scalar_tensor(1, kDouble);
}

// The tensors come first: they are the large ones, and may be read into memory that is there.
SavedState read_part(const ReadParts& read, const std::string& part, const NamedTensors& into) {
  SavedState state;
  state.tensors = read(tensor_prefix(part), into);
  for (const auto& [name, tensor] : read(number_prefix(part), {}))
    state.numbers[name] = tensor.item<double>();
  state.numbers.erase(kThere);
  for (const auto& [name, tensor] : read(text_prefix(part), {}))
    state.texts[name] = text_of(tensor);
  return state;
}

bool has_part(const ReadParts& read, const std::string& part) {
  return !read(number_prefix(part), {}).empty();
}

// The number without a name makes "numbers/ema/" a name in the file.
StringSet parts_in(const TensorEntries& saved) {
  StringSet parts;
  for (const auto& [name, entry] : saved)
    if (name.starts_with(kNumbers) && name.ends_with('/'))
      parts.insert(name.substr(kNumbers.size(), name.size() - kNumbers.size() - 1));
  return parts;
}

bool has_number(const TensorEntries& saved, const std::string& part, const std::string& number) {
  return saved.contains(number_prefix(part) + number);
}

SavedState state_of_optimizer(const Module& model, Optimizer& optimizer) {
  const OptimizerSnapshot snapshot = snapshot_optimizer(model, optimizer);
  SavedState state;
  state.tensors = snapshot.tensors;
  state.tensors[kDescription] = bytes_of(snapshot.description);
  return state;
}

void load_state_of_optimizer(const std::string& name,
                             const Module& model,
                             Optimizer& optimizer,
                             SavedState state) {
  std::string description = text_of(state.tensor(name, kDescription));
  state.tensors.erase(kDescription);
  restore_optimizer(model,
                    optimizer,
                    {.description = std::move(description), .tensors = std::move(state.tensors)});
}

}  // namespace muster
