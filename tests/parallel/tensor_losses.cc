// Trains a divided MLP on fixed data for 25 steps of AdamW and writes each rank's losses;
// tensor_losses.py does the same by torch.distributed.tensor.parallel.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdio>

#include "tests/support/twin.h"

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    torch::manual_seed(7);
    const auto features = torch::randn({1200, 64});
    const auto labels = torch::randint(10, {1200});
    torch::nn::Linear up(64, 700), down(700, 10);
    auto first = muster::column_parallel(up, ctx.process_group());
    auto second = muster::row_parallel(down, ctx.process_group());
    std::vector<torch::Tensor> parameters = first->parameters();
    for (const auto& parameter : second->parameters())
      parameters.push_back(parameter);
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.01));
    const std::string path = muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank());
    FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr)
      throw std::runtime_error("cannot write " + path);
    for (int64_t step = 0; step < 25; ++step) {
      const int64_t begin = step % 4 * 32;  // the same four batches: there is something to learn
      optimizer.zero_grad();
      const auto out = second(torch::relu(first(features.slice(0, begin, begin + 32))));
      const auto loss = torch::cross_entropy_loss(out, labels.slice(0, begin, begin + 32));
      loss.backward();
      optimizer.step();
      std::fprintf(file, "%.9g\n", static_cast<double>(loss.item<float>()));
    }
    std::fclose(file);
  });
}
