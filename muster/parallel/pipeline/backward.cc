// Splits a backward in two: the input's gradient now, the weights' later, which fills a pipeline's
// bubbles. The first run stops at crossings, where the ways to input and weights part, and keeps
// the gradients that arrive there. The second runs from the crossings to the weights. The graph is
// kept for it, so nothing is computed twice, except below weights that several crossings share.
#include "muster/parallel/pipeline/backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

// Autograd ends at such a node for each leaf that takes a gradient.
bool is_weight(const Node* node) {
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr;
}

// Returns every node below `root`, each after those that it leads to.
std::vector<Node*> children_first(Node* root) {
  std::vector<Node*> order;
  std::unordered_set<Node*> seen{root};
  // An explicit path stands for the recursion, which could be too deep for a long graph.
  std::vector<std::pair<Node*, size_t>> path{{root, 0}};
  while (!path.empty()) {
    Node* const node = path.back().first;
    if (path.back().second == node->num_outputs()) {
      order.push_back(node);
      path.pop_back();
      continue;
    }
    Node* const next = node->next_edge(path.back().second++).function.get();
    if (next != nullptr && seen.insert(next).second)
      path.emplace_back(next, 0);
  }
  return order;
}

// Appends the weights that are reached from `edge` by nodes that are not in `seen`.
// `seen` stays with the caller, so several calls with one set find each weight once.
void collect_weights(const Edge& edge, std::unordered_set<Node*>& seen, edge_list& weights) {
  edge_list todo{edge};
  while (!todo.empty()) {
    const Edge next = todo.back();
    todo.pop_back();
    if (!next.is_valid() || !seen.insert(next.function.get()).second)
      continue;
    if (is_weight(next.function.get()))
      weights.push_back(next);
    append_all(todo, next.function->next_edges());
  }
}

// Without `accumulates` the gradients at `to` are returned; with it they are added to the weights.
// The graph is kept, since the second run goes through it again.
Tensors run_engine(const edge_list& from,
                   const Tensors& gradients,
                   bool accumulates,
                   const edge_list& to) {
  return torch::autograd::Engine::get_default_engine().execute(from,
                                                               gradients,
                                                               /*keep_graph=*/true,
                                                               /*create_graph=*/false,
                                                               accumulates,
                                                               to);
}

// A place where the way to the weights leaves the way to the input: a node that leads to the input,
// and to weights by edges that do not. `in` has an edge for each gradient that the node takes.
struct Crossing {
  edge_list in;
  edge_list weights;
};

using LeadsToInput = std::unordered_map<Node*, bool>;

// The weights that a node leads to by edges that do not lead to the input.
edge_list weights_aside(Node& node, LeadsToInput& leads_to_input) {
  edge_list weights;
  std::unordered_set<Node*> seen;
  for (const Edge& below : node.next_edges())
    if (below.is_valid() && !leads_to_input[below.function.get()])
      collect_weights(below, seen, weights);
  return weights;
}

// A node may take several gradients, so each of its inputs gets an edge.
edge_list edges_into(const Node& node, const Edge& any) {
  edge_list edges(node.num_inputs(), any);
  for (uint32_t i = 0; i < edges.size(); ++i)
    edges[i].input_nr = i;
  return edges;
}

// Returns the crossings in the graph's order, not that of addresses: a backward may be collective,
// and then all ranks must run it in one order.
std::vector<Crossing> crossings_of(const Edge& root, const std::vector<Node*>& nodes, Node* input) {
  LeadsToInput leads_to_input;
  leads_to_input[input] = true;
  std::unordered_map<Node*, Edge> edge_to;
  edge_to[root.function.get()] = root;
  std::vector<Crossing> crossings;
  // Children come first, so what a node leads to is known when its turn comes.
  for (Node* const node : nodes) {
    bool& leads = leads_to_input[node];
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid())
        continue;
      edge_to.try_emplace(edge.function.get(), edge);
      leads = leads || leads_to_input[edge.function.get()];
    }
  }
  for (Node* const node : nodes) {
    if (!leads_to_input[node] || node == input)
      continue;
    edge_list weights = weights_aside(*node, leads_to_input);
    if (!weights.empty())
      crossings.push_back({edges_into(*node, edge_to.at(node)), std::move(weights)});
  }
  return crossings;
}

// Takes the weights that several crossings lead to out of them, and returns those weights. No
// crossing may be run for them, since the way from one crossing to the weight may go through
// another.
edge_list take_shared(std::vector<Crossing>& crossings) {
  std::unordered_map<Node*, int> uses;
  for (const Crossing& crossing : crossings)
    for (const Edge& weight : crossing.weights)
      ++uses[weight.function.get()];
  edge_list shared;
  for (Crossing& crossing : crossings) {
    std::erase_if(crossing.weights, [&](const Edge& weight) {
      int& left = uses[weight.function.get()];
      if (left == 1)
        return false;
      if (left > 1)
        shared.push_back(weight);
      left = 0;  // taken
      return true;
    });
  }
  std::erase_if(crossings, [](const Crossing& crossing) { return crossing.weights.empty(); });
  return shared;
}

// The backward from a crossing on, with the gradients that have come to it.
WeightBackward::Part part_from(const Crossing& crossing, const Tensors& came) {
  WeightBackward::Part part{.from = {}, .gradients = {}, .weights = crossing.weights};
  for (const size_t i : indices_of(came)) {
    if (!came[i].defined())
      continue;
    part.from.push_back(crossing.in[i]);
    part.gradients.push_back(came[i]);
  }
  return part;
}

// Nothing is computed for the input; everything is left for the weights.
WeightBackward whole_backward(const Edge& root, const Tensor& gradient) {
  WeightBackward::Part whole{.from = {root}, .gradients = {gradient}, .weights = {}};
  std::unordered_set<Node*> seen;
  collect_weights(root, seen, whole.weights);
  WeightBackward left;
  left.parts.push_back(std::move(whole));
  return left;
}

}  // namespace

void add_leaves(const Tensor& output, const Tensor& input, Tensors& leaves) {
  std::unordered_set<Node*> seen;
  edge_list found;
  collect_weights(torch::autograd::impl::gradient_edge(output), seen, found);
  for (const Edge& edge : found) {
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
    if (leaf->variable.defined() && !leaf->variable.is_same(input))
      leaves.push_back(leaf->variable);
  }
}

// The parts are dropped after it, and with them the graph and the gradients that they held.
void WeightBackward::run() {
  for (const Part& part : parts)
    run_engine(part.from, part.gradients, /*accumulates=*/true, part.weights);
  parts.clear();
}

// The calling thread waits for the first run. No weight's gradient changes before
// WeightBackward::run().
InputBackward backward_of_input(const Tensor& output, const Tensor& gradient, const Tensor& input) {
  InputBackward result;
  const Edge root = torch::autograd::impl::gradient_edge(output);
  if (!input.requires_grad()) {
    result.left = whole_backward(root, gradient);
    return result;
  }
  const Edge to_input = torch::autograd::impl::gradient_edge(input);
  const std::vector<Node*> nodes = children_first(root.function.get());
  // The output does not depend on the input.
  if (!contains(nodes, to_input.function.get())) {
    result.left = whole_backward(root, gradient);
    return result;
  }
  std::vector<Crossing> crossings = crossings_of(root, nodes, to_input.function.get());
  const edge_list shared = take_shared(crossings);
  if (!shared.empty())
    result.left.parts.push_back({.from = {root}, .gradients = {gradient}, .weights = shared});
  // One run finds the input's gradient and those at all crossings.
  edge_list wanted{to_input};
  for (const Crossing& crossing : crossings)
    append_all(wanted, crossing.in);
  const Tensors found = run_engine({root}, {gradient}, /*accumulates=*/false, wanted);
  result.gradient = found[0];
  auto first = found.begin() + 1;
  for (const Crossing& crossing : crossings) {
    const Tensors came(first, first + std::ssize(crossing.in));
    first += std::ssize(crossing.in);
    WeightBackward::Part part = part_from(crossing, came);
    if (!part.from.empty())
      result.left.parts.push_back(std::move(part));
  }
  return result;
}

}  // namespace muster
