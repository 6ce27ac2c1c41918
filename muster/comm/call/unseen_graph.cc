// A tensor that a call has written keeps its place in the graph. A hook there finds the backward
// that comes through it, so that a loss which is only reduced to be shown is no warning. What was
// gathered has no graph at all: nothing tells later whether a gradient was meant.
#include "muster/comm/call/unseen_graph.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "muster/base/log.h"

namespace muster {

bool has_graph(const Tensor& tensor) {
  return tensor.requires_grad() && !tensor.is_leaf() && at::GradMode::is_enabled();
}

void tell_of_input(const char* operation, const ToldOfGraph& told, int rank) {
  if (told->exchange(true))
    return;
  log_warning(
      operation,
      ": expected a tensor without a graph, got one whose gradient ends here, since autograd "
      "does not see collectives (rank ",
      rank,
      "); detach() it where none is meant, or call "
      "gather_sequence(x, group, 0), which has one");
}

void tell_of_backward(const char* operation,
                      const Tensor& output,
                      const ToldOfGraph& told,
                      int rank) {
  output.register_hook([operation, told, rank](const Tensor&) {
    if (!told->exchange(true))
      log_warning(operation,
                  ": expected no backward through the tensor that it has written, got one: the "
                  "gradient is that of each rank's own value, since autograd does not see "
                  "collectives (rank ",
                  rank,
                  "); write to a detached copy where none is meant, call reduce_from_group(x, "
                  "group) where each rank's own is (a layer that ranks share), or "
                  "gather_sequence(x, group, 0), which has that of all ranks");
  });
}

}  // namespace muster
