// What a piece of this room must have back to go on: numbers and tensors by name. It becomes any type with
// those two members, as muster/train's SavedState, which this room may not know.
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

  // `owner` is the piece that asks, for messages. Throws: invalid_argument when there is none of this name,
  // or not of this shape.
  double number(const std::string& owner, const std::string& name) const;
  const at::Tensor& tensor(const std::string& owner, const std::string& name,
                           const at::Tensor& shaped_as) const;
};

}  // namespace muster
