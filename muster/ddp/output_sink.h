// Lets a loss ignore some of a forward's outputs. With find_unused_parameters the Reducer waits for every
// parameter that any output leads to. Through the sink, backward reaches all of them: those that the loss
// ignores get no gradient, and are counted as unused.
//
// Source: _DDPSink of torch.nn.parallel.DistributedDataParallel, without its copies.
#pragma once

#include <vector>

#include "muster/ddp/outputs.h"

namespace muster {

// Puts each output that autograd follows, and that can be replaced, behind one common node.
void join_outputs(std::vector<ForwardOutput>& outputs);

}  // namespace muster
