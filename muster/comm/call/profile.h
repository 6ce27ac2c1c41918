// PyTorch's profiler shows an operation from its call to its completion, whichever thread completes
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/base/functions.h"
#include "muster/base/tensors.h"

namespace muster {

// Whether a profiler records this thread.
bool profiler_looks_on();

// Begins the event `title`, with the shapes of `tensors`, where a profiler looks on. The function
// that it returns ends the event, once, in any thread; it is empty where no profiler looks on.
Callback begin_event(const std::string& title, const Tensors& tensors);

}  // namespace muster
