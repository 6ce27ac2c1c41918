// A ResNet of basic blocks (18 or 34 layers) as torchvision has it, with the same names: the files
// of its weights need no table.
#pragma once

#include <muster/base/error.h>
#include <muster/base/strings.h>
#include <muster/checkpoint/load_weights.h>
#include <torch/torch.h>

#include <string>
#include <vector>

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        bn1(out),
        conv2(torch::nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        bn2(out) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    if (in == out && stride == 1)
      return;
    downsample->push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
    downsample->push_back(torch::nn::BatchNorm2d(out));
    register_module("downsample", downsample);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(inner + (downsample->is_empty() ? x : downsample->forward(x)));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample;
};
TORCH_MODULE(BasicBlock);

// `depths` has the blocks of each stage; resnet18 has {2, 2, 2, 2}, and a width of 64.
struct TorchvisionResNetImpl : torch::nn::Module {
  TorchvisionResNetImpl(const std::vector<int64_t>& depths, int64_t width, int64_t classes)
      : conv1(torch::nn::Conv2dOptions(3, width, 7).stride(2).padding(3).bias(false)), bn1(width) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    int64_t in = width;
    for (size_t stage = 0; stage < depths.size(); ++stage) {
      torch::nn::Sequential blocks;
      const int64_t out = width << stage;
      for (int64_t block = 0; block < depths[stage]; ++block) {
        blocks->push_back(BasicBlock(in, out, block == 0 && stage > 0 ? 2 : 1));
        in = out;
      }
      stages.push_back(register_module(muster::cat("layer", stage + 1), blocks));
    }
    fc = register_module("fc", torch::nn::Linear(in, classes));
  }

  // Shapes: x [batch, 3, height, width]; gives logits [batch, classes].
  torch::Tensor forward(const torch::Tensor& x) {
    auto seen = torch::max_pool2d(torch::relu(bn1(conv1(x))), 3, 2, 1);
    for (auto& blocks : stages)
      seen = blocks->forward(seen);
    return fc(seen.mean({2, 3}));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  std::vector<torch::nn::Sequential> stages;
  torch::nn::Linear fc = nullptr;
};
TORCH_MODULE(TorchvisionResNet);

// Makes the model that a file is of, with a head for other classes, and reads all but the head.
// Throws: as load_weights; invalid_argument for a file of another model. Collective: yes.
inline TorchvisionResNet load_torchvision_resnet(const std::string& path,
                                                 int64_t classes,
                                                 const muster::Peers& peers = {}) {
  const auto shapes = muster::weight_shapes(path, {}, peers);
  std::vector<int64_t> depths(4);
  for (size_t stage = 0; stage < depths.size(); ++stage)
    while (shapes.contains(muster::cat("layer", stage + 1, ".", depths[stage], ".conv1.weight")))
      ++depths[stage];
  if (!shapes.contains("conv1.weight") || shapes.contains("layer1.0.conv3.weight"))
    throw muster::Error(muster::ErrorCode::invalid_argument,
                        muster::cat("resnet: expected weights of torchvision's resnet18 or "
                                    "resnet34 in '",
                                    path,
                                    "', got those of another model; give one of these"));
  TorchvisionResNet net(depths, shapes.at("conv1.weight")[0], classes);
  const auto is_body = [](const std::string& name) {
    return !name.starts_with("fc.");
  };
  muster::load_weights(*net, path, {.only = is_body}, peers);
  return net;
}
