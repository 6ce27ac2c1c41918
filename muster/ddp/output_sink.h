// Lets a loss ignore some of a forward's outputs. With find_unused_parameters the Reducer waits for
// every parameter that any output depends on. Through the sink, backward reaches all outputs;
// parameters of ignored outputs get no gradient, and count as unused.
//
// Source: _DDPSink of torch.nn.parallel.DistributedDataParallel, without its copies.
#pragma once

#include "muster/ddp/outputs.h"

namespace muster {

// Routes all outputs that autograd follows, and that can be replaced, through one common node.
void join_outputs(ForwardOutputs& outputs);

}  // namespace muster
