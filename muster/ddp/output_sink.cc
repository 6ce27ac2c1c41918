// The sink is a node of the graph that passes outputs and gradients through unchanged.
#include "muster/ddp/output_sink.h"

#include <torch/csrc/autograd/custom_function.h>

#include "muster/base/indices_of.h"

namespace muster {

namespace {

class Sink : public torch::autograd::Function<Sink> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList outputs) {
    context->set_materialize_grads(false);  // no gradient stays none
    // Outputs keep their memory and version: changing an output in place is seen as without the
    // sink.
    torch::autograd::variable_list joined;
    for (const at::Tensor& output : outputs)
      joined.push_back(output.detach());
    return joined;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return gradients;
  }
};

}  // namespace

void join_outputs(std::vector<ForwardOutput>& outputs) {
  std::vector<ForwardOutput*> followed;
  torch::autograd::variable_list tensors;
  for (ForwardOutput& output : outputs) {
    if (!output.replace || !output.tensor.grad_fn())
      continue;
    followed.push_back(&output);
    tensors.push_back(output.tensor);
  }
  if (tensors.empty())
    return;
  const auto joined = Sink::apply(at::TensorList(tensors));
  for (const size_t i : indices_of(followed)) {
    followed[i]->tensor = joined[i];
    followed[i]->replace(joined[i]);
  }
}

}  // namespace muster
