// A ResNet for pictures of 32×32: three stages of residual blocks, as He and others have it for
// CIFAR.
#pragma once

#include <torch/torch.h>

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        norm1(out),
        conv2(torch::nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        norm2(out) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    if (in == out && stride == 1)
      return;
    shortcut->push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
    shortcut->push_back(torch::nn::BatchNorm2d(out));
    register_module("shortcut", shortcut);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(inner + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
  torch::nn::Sequential shortcut;
};
TORCH_MODULE(Block);

// `depth` blocks in each stage; stages of `width`, twice and four times as many channels.
struct ResNetImpl : torch::nn::Module {
  ResNetImpl(int64_t classes, int64_t depth, int64_t width)
      : head(torch::nn::Conv2dOptions(3, width, 3).padding(1).bias(false)),
        norm(width),
        linear(4 * width, classes) {
    register_module("head", head);
    register_module("norm", norm);
    for (int64_t stage = 0; stage < 3; ++stage) {
      for (int64_t block = 0; block < depth; ++block) {
        const int64_t in = width << (block == 0 ? std::max<int64_t>(stage - 1, 0) : stage);
        blocks->push_back(Block(in, width << stage, block == 0 && stage > 0 ? 2 : 1));
      }
    }
    register_module("blocks", blocks);
    register_module("linear", linear);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return linear(blocks->forward(torch::relu(norm(head(x)))).mean({2, 3}));
  }

  torch::nn::Conv2d head;
  torch::nn::BatchNorm2d norm;
  torch::nn::Sequential blocks;
  torch::nn::Linear linear;
};
TORCH_MODULE(ResNet);
