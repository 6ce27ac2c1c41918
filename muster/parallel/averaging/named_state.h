// What a class of this folder must save to continue: numbers and tensors by name. It converts to
// any type with these two members, such as muster/train's SavedState, which this folder must not
// know.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace muster {

struct NamedState {
  std::map<std::string, double> numbers;
  std::map<std::string, at::Tensor> tensors;

  template <class State>
    requires requires(const State& state) { state.numbers, state.tensors; }
  operator State() const {  // NOLINT(google-explicit-constructor)
    State state;
    state.numbers = numbers;
    state.tensors = tensors;
    return state;
  }
  template <class State>
  static NamedState from(const State& state) {
    return {.numbers = state.numbers, .tensors = state.tensors};
  }

  // `owner` is the class that asks, for messages. Throws: invalid_argument if there is no such
  // name, or it has another shape.
  double number(const std::string& owner, const std::string& name) const;
  const at::Tensor& tensor(const std::string& owner,
                           const std::string& name,
                           const at::Tensor& shaped_as) const;
};

}  // namespace muster
