// Small trainings in which something is wrong, for the rows of tests/faults: what the first
// argument says. Each rank prints what it has at the end.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>

namespace {

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl()
      : body(register_module("body", torch::nn::Linear(4, 8))),
        head(register_module("head", torch::nn::Linear(8, 2))),
        other_head(register_module("other_head", torch::nn::Linear(8, 2))) {}
  torch::Tensor forward(const torch::Tensor& x, bool other) {
    const auto features = torch::tanh(body(x));
    return other ? other_head(features) : head(features);
  }
  torch::nn::Linear body, head, other_head;
};
TORCH_MODULE(TwoHeads);

double weights_of(const std::vector<torch::Tensor>& parameters) {
  double sum = 0;
  for (const auto& tensor : parameters)
    sum += tensor.to(torch::kDouble).abs().sum().item<double>();
  return sum;
}

void say(muster::Context& ctx,
         const std::vector<torch::Tensor>& parameters,
         int64_t steps,
         int64_t skipped) {
  std::printf("rank %d weights %a steps %lld skipped %lld\n",
              ctx.rank(),
              weights_of(parameters),
              static_cast<long long>(steps),
              static_cast<long long>(skipped));
}

torch::Tensor input_of_rank(muster::Context& ctx, int step) {
  return torch::full({3, 4}, 0.1 * static_cast<double>(ctx.rank() + step + 1));
}

// Rank r has 3 + r batches.
void train_unevenly(muster::Context& ctx) {
  torch::nn::Linear net(4, 2);
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  int steps = 0;
  model.join([&] {
    for (; steps < 3 + ctx.rank(); ++steps) {
      optimizer.zero_grad();
      model(input_of_rank(ctx, steps)).sum().backward();
      optimizer.step();
    }
  });
  say(ctx, net->parameters(), steps, 0);
}

void train_one_head(muster::Context& ctx, bool find_unused) {
  TwoHeads net;
  muster::DistributedDataParallel model(
      net, ctx.process_group(), {.find_unused_parameters = find_unused});
  for (int step = 0; step < 3; ++step)
    model(input_of_rank(ctx, step), false).sum().backward();
  say(ctx, net->parameters(), 3, 0);
}

// Rank 1's loss is no number in the second of four steps.
void train_with_nan(muster::Context& ctx, muster::OnNonfinite what_then) {
  torch::nn::Linear net(4, 2);
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  muster::TrainStep step(model, optimizer, {.on_nonfinite = what_then});
  for (int i = 0; i < 4; ++i) {
    const bool is_bad = i == 1 && ctx.rank() == 1;
    const double factor = is_bad ? std::numeric_limits<double>::quiet_NaN() : 1;
    step.run(1, true, [&] { return model(input_of_rank(ctx, i)).square().mean() * factor; });
  }
  say(ctx, net->parameters(), step.steps(), step.skipped());
}

void train_wrongly(const std::string& what, muster::Context& ctx) {
  at::set_num_threads(1);
  ctx.seed_all(1);
  if (what == "uneven")
    return train_unevenly(ctx);
  if (what == "unused")
    return train_one_head(ctx, false);
  if (what == "unused allowed")
    return train_one_head(ctx, true);
  if (what == "nan")
    return train_with_nan(ctx, muster::OnNonfinite::stop);
  if (what == "nan skipped")
    return train_with_nan(ctx, muster::OnNonfinite::skip);
  throw std::invalid_argument("training_probe: unknown '" + what + "'");
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(
      argc, argv, [&](muster::Context& ctx) { train_wrongly(argc > 1 ? argv[1] : "", ctx); });
}
