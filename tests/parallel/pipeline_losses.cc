// Trains a fixed model of 4 stages for 20 steps by each schedule, and writes the losses as
// hexadecimal floats; pipeline_losses.py does the same with torch.distributed.pipelining.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "tests/support/twin.h"

namespace {

constexpr int kMicroBatches = 8;
constexpr int64_t kRows = 64;

// One layer after the other, as Python draws their weights; arguments of a call have no order.
torch::nn::Sequential whole_model() {
  torch::manual_seed(7);
  torch::nn::Sequential model;
  for (const auto& [in, out] : {std::pair{32, 96}, {96, 96}, {96, 96}}) {
    model->push_back(torch::nn::Linear(in, out));
    model->push_back(torch::nn::Tanh());
  }
  model->push_back(torch::nn::Linear(96, 10));
  return model;
}

void train(muster::Context& ctx) {
  at::set_num_threads(1);
  std::ofstream file(muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank()));
  for (const auto& schedule : {muster::gpipe(ctx.world_size(), kMicroBatches),
                               muster::one_f_one_b(ctx.world_size(), kMicroBatches)}) {
    const auto stages = muster::cut_into_stages(whole_model(), muster::cut_at(7, {2, 4, 6}));
    muster::Pipeline pipeline(
        {stages[static_cast<size_t>(ctx.rank())]},
        ctx.process_group(),
        {.schedule = schedule, .loss = [](const at::Tensor& x, const at::Tensor& y) {
           return torch::cross_entropy_loss(x, y);
         }});
    torch::optim::SGD optimizer(pipeline.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::manual_seed(3);
    for (int step = 0; step < 20; ++step) {
      const auto x = torch::randn({kRows, 32});
      const auto y = torch::randint(10, {kRows});
      optimizer.zero_grad();
      const auto loss = pipeline.step(x, y);
      optimizer.step();
      char text[64];
      if (loss.defined()) {
        std::snprintf(text, sizeof(text), "%a", static_cast<double>(loss.item<float>()));
        file << schedule.name << " " << text << "\n";
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, train);
}
