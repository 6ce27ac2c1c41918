// The network of the programs with pictures, and how it sees them.
#pragma once

#include <muster/muster.h>
#include <torch/torch.h>

namespace nn = torch::nn;
namespace transform = muster::transform;

struct NetworkImpl : nn::Module {
  explicit NetworkImpl(int64_t classes) : head(128, classes) { register_module("head", head); }
  at::Tensor forward(const at::Tensor& images) { return head(backbone->forward(images)); }

  nn::Sequential backbone = register_module("backbone",
                                            nn::Sequential(nn::Conv2d(3, 16, 3),
                                                           nn::ReLU(),
                                                           nn::MaxPool2d(2),
                                                           nn::Conv2d(16, 32, 3),
                                                           nn::ReLU(),
                                                           nn::AdaptiveMaxPool2d(2),
                                                           nn::Flatten()));
  nn::Linear head;
};
TORCH_MODULE(Network);

inline at::Tensor normalized(const at::Tensor& image, muster::Generator& /*rng*/) {
  return transform::normalize(image, transform::kImageNetMean, transform::kImageNetDeviation);
}
