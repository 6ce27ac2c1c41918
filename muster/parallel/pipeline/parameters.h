// What a pipeline's stages have in common: the norm of all their gradients, and all their
// parameters by name. Used only by pipeline.cc.
#pragma once

#include <optional>
#include <string>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/pipeline/gradients.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/tensor/tensor_parallel.h"

namespace muster {

// Where the stages have the parameter.
StagePlace place_in_stages(const PipelineStages& stages, const Tensor& parameter);

// What is wrong with this rank's stages where they share a parameter with another rank's, as
// cut_into_stages has left it, and nobody has tied it; or nothing.
std::string untied_problem(const PipelineStages& stages,
                           const TiedWeights& tied,
                           const PipelineSchedule& schedule,
                           const ProcessGroup& group);

// As Pipeline::clip_grad_norm.
Tensor clip_stages(const PipelineStages& stages,
                   const TiedWeights& tied,
                   double max_norm,
                   ProcessGroup& group,
                   const std::optional<ProcessGroup>& divided_over);

// As Pipeline::gather_parameters.
WholeParameters gather_stages(const PipelineStages& stages,
                              const TiedWeights& tied,
                              ProcessGroup& group);

// As Pipeline::pieces.
TensorPieces pieces_of_stages(const PipelineStages& stages,
                              const TiedWeights& tied,
                              const ProcessGroup& group);

}  // namespace muster
