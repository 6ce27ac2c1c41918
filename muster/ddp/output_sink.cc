// The sink is a node of the graph that passes outputs and gradients through unchanged.
#include "muster/ddp/output_sink.h"

#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

class Sink : public torch::autograd::Function<Sink> {
 public:
  static Tensors forward(AutogradContext* context, at::TensorList outputs) {
    context->set_materialize_grads(false);  // no gradient stays none
    // Outputs keep their memory and version: changing an output in place is seen as without the
    // sink.
    return mapped(outputs, &Tensor::detach);
  }
  static Tensors backward(AutogradContext* /*context*/, const Tensors& gradients) {
    return gradients;
  }
};

}  // namespace

void join_outputs(ForwardOutputs& outputs) {
  std::vector<ForwardOutput*> followed;
  Tensors tensors;
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
