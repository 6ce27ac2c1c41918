// A state may come from a file, so whatever a part asks for may be missing.
#include "muster/checkpoint/saved_state.h"

#include <cmath>

#include "muster/base/error.h"
#include "muster/base/lookup.h"

namespace muster {

namespace {

// `owner` is the part that asks, and `kind` what it asks for.
template <class Value>
const Value& entry_of(const std::map<std::string, Value>& entries,
                      const std::string& owner,
                      const char* kind,
                      const std::string& name) {
  if (const Value* found = value_at(entries, name))
    return *found;
  throw invalid_argument(owner,
                         ": expected a saved state with the ",
                         kind,
                         " '",
                         name,
                         "', got one without; load the state of the same part");
}

}  // namespace

double SavedState::number(const std::string& owner, const std::string& name) const {
  return entry_of(numbers, owner, "number", name);
}

// A number of a damaged file may be a fraction, or NaN.
int64_t SavedState::whole_number(const std::string& owner, const std::string& name) const {
  const double value = number(owner, name);
  constexpr double kLargest = 9007199254740992;  // 2^53; beyond it doubles leave out whole numbers
  const bool is_count = value >= 0 && value <= kLargest && std::trunc(value) == value;
  if (!is_count) {
    throw invalid_argument(owner,
                           ": expected a whole number of 0 or more as '",
                           name,
                           "', got ",
                           value,
                           "; load the state of the same part");
  }
  return static_cast<int64_t>(value);
}

const Tensor& SavedState::tensor(const std::string& owner, const std::string& name) const {
  return entry_of(tensors, owner, "tensor", name);
}

const std::string& SavedState::text(const std::string& owner, const std::string& name) const {
  return entry_of(texts, owner, "text", name);
}

}  // namespace muster
