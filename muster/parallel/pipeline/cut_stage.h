// A stage that knows which of its parameters other stages of its cut have too: a rank has some of
// the stages, and would see no more than a parameter of its own. Used only by stages.cc and
// parameters.cc.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>

#include "muster/base/lists.h"
#include "muster/base/torch_names.h"

namespace muster {

// While `tensor` is held, no other tensor gets its address.
struct StagesOfParameter {
  c10::weak_intrusive_ptr<TensorImpl> tensor;
  Ints stages = {};
};

using SharedParameters = std::map<const TensorImpl*, StagesOfParameter>;

struct CutStage : torch::nn::SequentialImpl {
  SharedParameters shared;  // of the whole cut
};

}  // namespace muster
