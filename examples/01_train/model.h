// The example's model: two convolutions and two linear layers, for images of 8×8 up to 28×28.
#pragma once

#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t rows, int64_t columns)
      : conv1(torch::nn::Conv2dOptions(1, 16, 3).padding(1)),
        conv2(torch::nn::Conv2dOptions(16, 32, 3).padding(1)),
        norm(32),
        fc1(32 * (rows / 2) * (columns / 2), 64),
        fc2(64, 10) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("norm", norm);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::max_pool2d(torch::relu(norm(conv2(x))), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Net);
