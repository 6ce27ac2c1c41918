// A state may come from a file, so whatever a part asks for may be missing.
#include "muster/checkpoint/saved_state.h"

#include <cmath>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// `wanted` is what the owner has asked for.
[[noreturn]] void refuse_saved_state(const std::string& owner, const std::string& wanted) {
  throw Error(ErrorCode::invalid_argument,
              cat(owner,
                  ": expected a saved state with ",
                  wanted,
                  ", got one without; load the state of the same part"));
}

}  // namespace

double SavedState::number(const std::string& owner, const std::string& name) const {
  const auto found = numbers.find(name);
  if (found == numbers.end())
    refuse_saved_state(owner, cat("the number '", name, "'"));
  return found->second;
}

// A number of a damaged file may be a fraction, or NaN.
int64_t SavedState::whole_number(const std::string& owner, const std::string& name) const {
  const double value = number(owner, name);
  constexpr double kLargest = 9007199254740992;  // 2^53; beyond it doubles leave out whole numbers
  const bool is_count = value >= 0 && value <= kLargest && std::trunc(value) == value;
  if (!is_count) {
    throw Error(ErrorCode::invalid_argument,
                cat(owner,
                    ": expected a whole number of 0 or more as '",
                    name,
                    "', got ",
                    value,
                    "; load the state of the same part"));
  }
  return static_cast<int64_t>(value);
}

const at::Tensor& SavedState::tensor(const std::string& owner, const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end())
    refuse_saved_state(owner, cat("the tensor '", name, "'"));
  return found->second;
}

const std::string& SavedState::text(const std::string& owner, const std::string& name) const {
  const auto found = texts.find(name);
  if (found == texts.end())
    refuse_saved_state(owner, cat("the text '", name, "'"));
  return found->second;
}

}  // namespace muster
