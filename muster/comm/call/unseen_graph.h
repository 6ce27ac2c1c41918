// What a program is told where it counts on a gradient that no collective has: autograd does not
// see what a group's calls move. Each kind is told once a group, by the rank of this number in the
// job.
#pragma once

#include <atomic>
#include <memory>

#include "muster/base/tensors.h"

namespace muster {

using ToldOfGraph = std::shared_ptr<std::atomic<bool>>;

// Whether autograd has recorded how the tensor was made, and goes on recording.
bool has_graph(const Tensor& tensor);

// The call reads `input`, which has a graph. Logs a warning, unless one was logged.
void tell_of_input(const char* operation, const ToldOfGraph& told, int rank);
// The call writes `output`, which has a graph. A backward that comes through it logs the warning.
void tell_of_backward(const char* operation,
                      const Tensor& output,
                      const ToldOfGraph& told,
                      int rank);

}  // namespace muster
