// What a part of a training run must have back to go on as if it had never stopped: plain numbers, tensors
// and texts by name. Every part here has `state()` and `load_state()`; who writes them to a file, and where,
// it does not know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace muster {

struct SavedState {
  std::map<std::string, double> numbers;  // whole ones up to 2^53 exactly
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> texts;  // any bytes

  // `owner` is the part that asks, for messages. Throws: invalid_argument when there is none of this name.
  double number(const std::string& owner, const std::string& name) const;
  int64_t whole_number(const std::string& owner, const std::string& name) const;
  const at::Tensor& tensor(const std::string& owner, const std::string& name) const;
  const std::string& text(const std::string& owner, const std::string& name) const;
};

}  // namespace muster
