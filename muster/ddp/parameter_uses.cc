// A use is an edge of the graph that leads to the parameter's gradient. Samples that take other
// ways through a model (experts) make other uses: so a tie counts as lost only where the uses of
// one parameter are exactly what another, which is used besides, has less.
#include "muster/ddp/parameter_uses.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"

namespace muster {

ParameterUses parameter_uses(const Tensors& outputs, const Tensors& parameters) {
  using torch::autograd::Node;
  std::map<std::pair<const Node*, uint32_t>, size_t> numbers;
  for (const size_t i : indices_of(parameters)) {
    const auto edge = torch::autograd::impl::gradient_edge(parameters[i]);
    numbers.try_emplace({edge.function.get(), edge.input_nr}, i);
  }
  ParameterUses uses(parameters.size());
  std::vector<Node*> found =
      mapped(outputs, [](const Tensor& output) { return output.grad_fn().get(); });
  std::erase(found, nullptr);
  std::set<Node*> seen(found.begin(), found.end());
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto& edge : found[i]->next_edges()) {
      Node* const next = edge.function.get();
      const auto number = numbers.find({next, edge.input_nr});
      if (next != nullptr && number != numbers.end())
        ++uses[number->second];
      else if (next != nullptr && seen.insert(next).second)
        found.push_back(next);
    }
  }
  return uses;
}

std::optional<LostTie> lost_tie(const std::vector<ParameterUses>& uses, const Tensors& parameters) {
  const ParameterUses& of_model = uses.front();
  const auto is_lost = [&](size_t copied, size_t used) {
    return std::all_of(uses.begin() + 1, uses.end(), [&](const ParameterUses& of_copy) {
      return of_copy[copied] > 0 && of_copy[used] > 0 &&
             of_model[used] == of_copy[used] + of_copy[copied];
    });
  };
  for (const size_t copied : indices_of(parameters))
    for (size_t used = 0; used < parameters.size() && of_model[copied] == 0; ++used)
      if (parameters[copied].sizes() == parameters[used].sizes() && is_lost(copied, used))
        return LostTie{.in_copies = copied, .in_model = used};
  return std::nullopt;
}

}  // namespace muster
