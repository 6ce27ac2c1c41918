// Ties that a program makes by assigning a member of a layer, as head->weight = embed->weight. The
// layer computes with its member, while lists of parameters, clones and checkpoints know what is
// registered. Used by whoever wraps a model. Members of other classes than LibTorch's layers are
// not seen.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

// A member that is not what its layer has registered under that name.
struct AssignedMember {
  std::string name;  // in the model
  Tensor tensor;
  const Module* layer;
};

std::vector<AssignedMember> assigned_members(Module& model);

// Makes each layer of `to`, a clone of `from` on a device, compute with what stands for the tensor
// that the layer of `from` computes with.
void copy_member_ties(const Module& from, const Module& to, Device device);

}  // namespace muster
