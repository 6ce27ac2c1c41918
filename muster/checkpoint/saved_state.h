// The state of a part of a training, with which it continues as if it had never stopped: numbers,
// tensors and texts by name. A part has `state()` and `load_state()`; it does not know who writes
// them to a file, or where.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"

namespace muster {

struct SavedState {
  std::map<std::string, double> numbers{};  // integers up to 2^53 are exact
  NamedTensors tensors{};
  StringMap texts{};  // any bytes

  // `owner` is the part that asks, for messages. Throws: invalid_argument if there is no such name.
  double number(const std::string& owner, const std::string& name) const;
  int64_t whole_number(const std::string& owner, const std::string& name) const;
  const Tensor& tensor(const std::string& owner, const std::string& name) const;
  const std::string& text(const std::string& owner, const std::string& name) const;
};

// A count as a number of a state.
inline double as_number(int64_t count) {
  return static_cast<double>(count);
}

}  // namespace muster
