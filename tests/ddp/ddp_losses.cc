// Trains a fixed model on fixed data for 20 steps and writes each rank's losses as hexadecimal
// floats; ddp_losses.py does the same in Python.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdio>

#include "tests/support/twin.h"

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("fc1", fc1);
    register_module("norm", norm);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }
  torch::Tensor forward(torch::Tensor x) {
    return fc3(torch::relu(fc2(torch::relu(norm(fc1(x))))));
  }
  torch::nn::Linear fc1{64, 700};
  torch::nn::BatchNorm1d norm{700};
  torch::nn::Linear fc2{700, 500};
  torch::nn::Linear fc3{500, 10};
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    torch::manual_seed(7);
    const auto features = torch::randn({1200, 64}).to(ctx.device());
    const auto labels = torch::randint(10, {1200}).to(ctx.device());
    torch::manual_seed(1 + ctx.rank());  // construction must broadcast rank 0's weights
    Net net;
    net->to(ctx.device());
    muster::DistributedDataParallel model(net, ctx.process_group());
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    const std::string path = muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank());
    FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr)
      throw std::runtime_error("cannot write " + path);
    for (int step = 0; step < 20; ++step) {
      const int64_t begin = (step * ctx.world_size() + ctx.rank()) * 16 % 1184;
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(model(features.slice(0, begin, begin + 16)),
                                                  labels.slice(0, begin, begin + 16));
      loss.backward();
      optimizer.step();
      std::fprintf(file, "%a\n", static_cast<double>(loss.item<float>()));
    }
    std::fclose(file);
  });
}
