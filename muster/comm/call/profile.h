// An operation as PyTorch's profiler shows it: from its call to its completion, whichever thread
// completes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace muster {

// In this thread.
bool profiler_looks_on();

// Begins the event `title`, with the shapes of `tensors`, where a profiler looks on. What it
// returns ends the event, once, in any thread; it is empty where none does.
std::function<void()> begin_event(const std::string& title, const std::vector<at::Tensor>& tensors);

}  // namespace muster
