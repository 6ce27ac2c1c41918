// Models that the checkpoint tests save and load.
#pragma once

#include <torch/torch.h>

#include "muster/checkpoint/checkpoint.h"

namespace muster::test {

// Parameters, buffers, a scalar buffer, and a parameter that never gets a gradient.
struct SmallModelImpl : torch::nn::Module {
  explicit SmallModelImpl(int64_t width = 8)
      : first(register_module("first", torch::nn::Linear(4, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        last(register_module("last", torch::nn::Linear(width, 2))),
        unused(register_parameter("unused", torch::ones({3}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(norm(first(x)))); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
  torch::Tensor unused;
};
TORCH_MODULE(SmallModel);

// About 2 MB in several tensors.
inline torch::nn::Sequential big_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i)
    model->push_back(torch::nn::Linear(350, 350));
  return model;
}

inline void fill(torch::nn::Module& model, double value) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters())
    parameter.fill_(value);
}

// The one value that all parameters have; NaN when they have several.
inline double filled_with(const torch::nn::Module& model) {
  const double value = model.parameters().front().flatten()[0].item<double>();
  for (const auto& parameter : model.parameters())
    if (!(parameter == value).all().item<bool>())
      return std::nan("");
  return value;
}

inline std::vector<torch::Tensor> copies(const torch::nn::Module& model) {
  std::vector<torch::Tensor> tensors;
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const auto& tensor : list)
      tensors.push_back(tensor.detach().clone());
  return tensors;
}

// Equal bit for bit.
inline bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size())
    return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!torch::equal(a[i], b[i]))
      return false;
  return true;
}

// Steps first..last of a training whose data depends on the step alone.
inline void train(SmallModel& model, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step <= last; ++step) {
    const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const auto x = torch::randn({16, 4}, generator);
    const auto y = torch::randint(2, {16}, generator, torch::kInt64);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(x), y).backward();
    optimizer.step();
  }
}

}  // namespace muster::test
