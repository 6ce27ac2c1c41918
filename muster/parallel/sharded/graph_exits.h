// The end of a forward's own part in a backward: when it has come to all nodes through which the
// forward's graph leaves it, it reads none of the forward's tensors any more. Used by
// fully_sharded_unit.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "muster/base/functions.h"
#include "muster/base/tensors.h"

namespace muster {

// `first`: at::sequence_number::peek() before the forward; nodes that other threads have made are
// not seen. `on_exit` is called after each such node has run, in one of autograd's threads. Returns
// how many there are.
size_t watch_graph_exits(const Tensors& outputs, uint64_t first, const Callback& on_exit);

}  // namespace muster
