// Finds the nodes at which a backward leaves the graph of one forward, and hangs a hook on each.
// When all of them have run, the forward's module is no longer read by this backward.
#include "muster/parallel/sharded/graph_exits.h"

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/ddp/post_hook.h"

namespace muster {

namespace {

using torch::autograd::Node;

// Nodes are numbered as they are made, so those of a forward have the numbers since its beginning.
// Nodes without a next one (which accumulate gradients) have no number of their own.
bool is_of_the_forward(const Node& node, uint64_t first) {
  return node.num_outputs() > 0 && node.sequence_nr() >= first;
}

}  // namespace

// It returns the number of exits, so that the caller knows when all have run.
size_t watch_graph_exits(const Tensors& outputs, uint64_t first, const Callback& on_exit) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> found;
  // False: the node belongs to what was computed before the forward.
  const auto visit = [&](Node* node) {
    if (node == nullptr)
      return true;
    if (!is_of_the_forward(*node, first))
      return false;
    if (seen.insert(node).second)
      found.push_back(node);
    return true;
  };
  for (const Tensor& output : outputs)
    visit(output.grad_fn().get());
  size_t exits = 0;
  for (const size_t i : indices_of(found)) {
    bool leaves = false;
    for (const auto& edge : found[i]->next_edges())
      if (!visit(edge.function.get()))
        leaves = true;
    if (!leaves)
      continue;
    found[i]->add_post_hook(std::make_unique<PostHook>(on_exit));
    ++exits;
  }
  return exits;
}

}  // namespace muster
