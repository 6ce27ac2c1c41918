// Looks things up in a saved state; a state of another class or model is refused by name and shape.
// `owner` is the class that loads, whose name begins each error.
#include "muster/parallel/averaging/named_state.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// It never returns, so callers need no path for a missing entry.
[[noreturn]] void refuse_named_state(const std::string& owner,
                                     const std::string& wanted,
                                     const std::string& got) {
  throw Error(ErrorCode::invalid_argument,
              cat(owner,
                  ": expected a saved state with ",
                  wanted,
                  ", got ",
                  got,
                  "; load the state of the same piece and model"));
}

}  // namespace

double NamedState::number(const std::string& owner, const std::string& name) const {
  const auto found = numbers.find(name);
  if (found == numbers.end())
    refuse_named_state(owner, cat("the number '", name, "'"), "one without");
  return found->second;
}

// It checks the shape alone: the caller converts type and device.
const at::Tensor& NamedState::tensor(const std::string& owner,
                                     const std::string& name,
                                     const at::Tensor& shaped_as) const {
  const std::string wanted =
      cat("the tensor '", name, "' of shape [", join(shaped_as.sizes(), ", "), "]");
  const auto found = tensors.find(name);
  if (found == tensors.end())
    refuse_named_state(owner, wanted, "one without");
  if (found->second.sizes() != shaped_as.sizes())
    refuse_named_state(owner, wanted, cat("shape [", join(found->second.sizes(), ", "), "]"));
  return found->second;
}

}  // namespace muster
