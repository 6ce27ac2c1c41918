// Trains in fp32, bf16 and fp16 by TrainStep, two micro-batches a step, with clipping, a schedule
// and averages, and writes losses and averages of each rank as hexadecimal floats; step_losses.py
// does the same in Python, by hand.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "tests/support/twin.h"

namespace {

struct StepNetImpl : torch::nn::Module {
  StepNetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("fc", fc);
  }
  // LibTorch's Linear is an addmm over a transposed view, which autocast casts in another order
  // than Python's: then gradients arrive in another order, lie elsewhere in the bucket, and three
  // ranks' are added in another one.
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::linear(torch::relu(norm(conv(x))).flatten(1), fc->weight, fc->bias);
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 6, 3)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::Linear fc{6 * 36, 10};
};
TORCH_MODULE(StepNet);

struct HalfOfAStep {
  double weight = 0.5;
  bool last = false;
};

void train_and_write(muster::Context& ctx, const std::string& type, FILE* file) {
  torch::manual_seed(7);
  const auto images = torch::randn({960, 1, 8, 8}).to(ctx.device());
  const auto labels = torch::randint(10, {960}).to(ctx.device());
  torch::manual_seed(1 + ctx.rank());
  StepNet net;
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  muster::Precision precision(ctx.device(),
                              {.type = type, .init_scale = 1048576, .growth_interval = 4});
  muster::Schedule schedule(optimizer, muster::rate::lambda([](int64_t step) {
                              return 1 / std::sqrt(static_cast<double>(1 + step));
                            }));
  muster::Ema ema(*model.module(), 0.9);
  muster::TrainStep step(
      model,
      optimizer,
      {.precision = &precision, .clip_norm = 0.5, .schedule = &schedule, .ema = &ema});
  for (int i = 0; i < 40; ++i) {
    const int64_t begin = (i * ctx.world_size() + ctx.rank()) * 8 % 952;
    const auto loss = step(HalfOfAStep{.last = i % 2 == 1}, [&] {
      return torch::cross_entropy_loss(model(images.slice(0, begin, begin + 8)),
                                       labels.slice(0, begin, begin + 8));
    });
    std::fprintf(file,
                 "%s %a %a %lld\n",
                 type.c_str(),
                 loss.item<double>(),
                 precision.scale_value(),
                 static_cast<long long>(step.skipped()));
  }
  for (const auto& [name, average] : ema.averages())
    std::fprintf(file,
                 "%s %s %a\n",
                 type.c_str(),
                 name.c_str(),
                 average.to(torch::kDouble).sum().item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    at::set_num_threads(1);
    at::globalContext().setDeterministicCuDNN(true);
    const std::string path = muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank());
    FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr)
      throw std::runtime_error("cannot write " + path);
    for (const char* type : {"fp32", "bf16", "fp16"})
      train_and_write(ctx, type, file);
    std::fclose(file);
  });
}
