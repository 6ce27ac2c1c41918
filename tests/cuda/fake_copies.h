// Copies between the host and the fake GPUs. One that is not waited for out of page-locked memory,
// or to it, is made as late as a GPU may make it: from the host, when the GPU's memory is next used
// or the host has waited; to the host, when the host has waited, with the values of then. A program
// that reads or overwrites such memory too early gets wrong values, every time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "tests/cuda/fake_memory.h"
#include "tests/cuda/fake_streams.h"

namespace muster::testing {

c10::Allocator& pinned_allocator();
bool is_pinned(const void* at);

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking);

// The tensor as an operation has it, conjugated and negated as it is.
at::Tensor values_of(const at::Tensor& tensor, const Operation& operation, Use use);

// Those that are over for whoever has the clock. Of a thread that has only asked: those that it has
// launched itself.
void make_late_copies(const VectorClock& clock, bool of_this_thread);

// Those from the host to pages that are used now.
void make_late_copies_to(const Range& pages);

}  // namespace muster::testing
