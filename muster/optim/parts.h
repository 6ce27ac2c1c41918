// Records of which tensors a rank has only a part, or a part of the gradient. The classes that
// shard a model or divide its layers (muster/parallel) mark them; optimizers and the training step
// look, because what goes by a shape or by the norm of all gradients would be silently wrong.
// A mark lasts as long as the tensor, or until it is taken away as often as it was given.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"

namespace muster::optim {

// Flat parts of parameters, whose shape is not the parameter's.
void record_parts(const Tensors& parts);
bool is_part(const Tensor& tensor);

// Parameters, or parts of them, of whose gradient this rank has a part.
void mark_divided_gradients(const Tensors& parameters);
void unmark_divided_gradients(const Tensors& parameters);
bool has_divided_gradient(const Tensor& parameter);

// Parameters whose gradients a living optimizer takes from every backward into its own parts.
void claim_gradients(const Tensors& parameters);
void release_gradients(const Tensors& parameters);
int claims_of_gradient(const Tensor& parameter);

// Parts of divided layers (tensor parallelism), whose gradients are whole for what the rank has.
// `ranks` of the job have the other parts, and this one.
void mark_layer_parts(const Tensors& parameters, const Ints& ranks);
bool is_layer_part(const Tensor& parameter);
// The ranks of the job that have the layer's parts; none for a parameter that is whole.
Ints ranks_of_layer_parts(const Tensor& parameter);
// Throws: invalid_argument, in the name of `owner`, where `ranks`, which are about to get the same
// parameters, have other parts of one layer. `rank` is this one.
void refuse_other_parts(const std::string& owner,
                        const Tensors& parameters,
                        const Ints& ranks,
                        int rank);

// Whole parameters of a pipeline's stages, whose other stages lie on other ranks.
void mark_stage_parameters(const Tensors& parameters);
void unmark_stage_parameters(const Tensors& parameters);
bool is_stage_parameter(const Tensor& parameter);

}  // namespace muster::optim
