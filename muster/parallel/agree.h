// What the ranks of a group must have in common before the first step: compared once, and rejected
// on all ranks alike. For the constructors of this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

struct Term {
  std::string name;
  std::string value;
  std::string otherwise = {};  // what else to do where it differs; ends the error
};
using Terms = std::vector<Term>;

// `wrong`: this rank's own problem, as an error message; empty: none.
// Collective: over the group.
// Throws: invalid_argument, on every rank, with the first rank's `wrong`, or else with the first
// term whose values differ and the ranks that have them.
void require_agreement(ProcessGroup& group,
                       const std::string& owner,
                       const std::string& wrong,
                       const Terms& terms);

// Number, types, shapes and contents of tensors.
Terms terms_of(const std::string& name, const Tensors& tensors);

}  // namespace muster
