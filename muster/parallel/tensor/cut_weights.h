// The whole weights that layers were divided from. Two layers that share one would be trained as
// two weights, since each gets parts of its own. Only for this folder.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/process_group.h"

namespace muster {

// Returns what is wrong with dividing `whole` of the layer, or nothing: a part of it that another
// layer has, and trains, still exists.
std::string wrong_tie(const char* call,
                      const Module& layer,
                      const Tensor& whole,
                      const ProcessGroup& group);

// Remembers it, as long as the part exists.
void remember_cut(const Module& layer, const Tensor& whole, const Tensor& part);

}  // namespace muster
