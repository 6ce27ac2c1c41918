// Embeddings with a max_norm: their forward scales the rows of the weight that are looked up, in
// place. Each rank looks up others, so what it writes is its own. The classes that keep ranks'
// weights alike say so when they get such a model; PyTorch's do not.
#pragma once

#include <torch/nn/module.h>

#include "muster/base/torch_names.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/options.h"

namespace muster {

// The weights of such embeddings, by the names of these.
ModelTensors weights_with_max_norm(const Module& model);
// The trained ones of them. (What a frozen one gives is the same on every rank, whatever was
// written before.)
ModelTensors renormalized_weights(const Module& model);

// Rank 0 warns of each, in the name of `owner`; nobody does in a group of one.
void warn_of_renormalized(const char* owner,
                          const ModelTensors& weights,
                          const ProcessGroup& group);

}  // namespace muster
