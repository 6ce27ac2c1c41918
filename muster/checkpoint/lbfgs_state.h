// LBFGS, which has one state for all of its parameters: flat vectors, and a history of them. Inside
// of optimizer_state.cc.
#pragma once

#include <torch/optim/lbfgs.h>

#include <functional>
#include <string>

#include "muster/base/strings.h"
#include "muster/checkpoint/optimizer_state.h"

namespace muster::detail {

// Like optimizer_pieces; every rank has it whole. `names` are the parameters', in their order.
OptimizerPieces lbfgs_pieces(const Strings& names, torch::optim::LBFGS& optimizer);

// Like prepare_optimizer, with the names compared. Throws: invalid_argument too for tensors that
// are no state of LBFGS over `elements` elements.
InstallState prepare_lbfgs(const Strings& names,
                           torch::optim::LBFGS& optimizer,
                           const std::string& description,
                           const TensorEntries& entries,
                           const FetchTensor& fetch);

}  // namespace muster::detail
