// Trains for 12 steps with everything that muster/train has and prints, on rank 0, what came out as
// hexadecimal floats: the same on CPUs and on GPUs (fake ones, whose memory the host cannot reach).
//
//   train_probe bare        takes one step of a model that is not wrapped
//   train_probe unreduced   the same, and says that it is meant
//   train_probe seed | undivided | uneven | own
//                           trains with a loader made by hand: each rank's seed is its own; all
//                           ranks read everything, by mistake; they have unequal numbers of
//                           batches; each rank's data is its own, as it says
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

struct ProbeNetImpl : torch::nn::Module {
  ProbeNetImpl() {
    register_module("fc1", fc1);
    register_module("norm", norm);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc2(torch::relu(norm(fc1(x)))); }
  torch::nn::Linear fc1{16, 24};
  torch::nn::BatchNorm1d norm{24};
  torch::nn::Linear fc2{24, 4};
};
TORCH_MODULE(ProbeNet);

muster::TensorDataset probe_data() {
  const auto x = torch::randn({96, 16}, at::detail::createCPUGenerator(5));
  return {x, x.sum(1).abs().to(torch::kLong).remainder(4)};
}

void print_numbers(const char* name, const muster::MetricValues& values) {
  std::printf("%s", name);
  for (const auto& [metric, value] : values)
    std::printf(" %s=%a", metric.c_str(), value);
  std::printf("\n");
}

void train_probe(muster::Context& ctx, const std::string& type) {
  torch::manual_seed(3);
  ProbeNet net;
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::AdamW optimizer(model.parameters(), 0.01);
  muster::Precision precision(ctx.device(),
                              {.type = type, .init_scale = 1048576, .growth_interval = 4});
  muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = 12, .warmup = 3}));
  muster::Ema ema(*net, 0.8);
  muster::Metrics metrics(ctx.process_group(), {});
  muster::TrainStep step(
      model,
      optimizer,
      {.precision = &precision, .clip_norm = 0.5, .schedule = &schedule, .ema = &ema});
  const auto data = probe_data();
  auto sampler = ctx.sampler(data.size());
  muster::DataLoader loader(
      data, sampler, {.batch_size = 4, .accumulate = 3, .device = ctx.device()});
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& batch : loader) {
      torch::Tensor logits;
      const auto loss = step(batch, [&] {
        logits = model(batch.features);
        // In fp32, as CPUs' autocast computes this loss in any case and GPUs' does not.
        return torch::cross_entropy_loss(logits.to(torch::kFloat), batch.labels);
      });
      metrics.mean("loss", loss, static_cast<double>(batch.size()));
      metrics.accuracy("top2", logits, batch.labels, 2);
      metrics.max("least", logits);
      if (!batch.last)
        continue;
      if (step.grad_norm().defined())
        metrics.min("norm", step.grad_norm());
      metrics.sum("scale", precision.scale_value());
      const auto values = metrics.write(step.steps());
      if (ctx.is_main())
        print_numbers(type.c_str(), values);
    }
  }
  const auto averages = ema.swap();
  const torch::NoGradGuard no_grad;
  muster::Metrics last(ctx.process_group(), {});
  const auto averaged = net(data.features().to(ctx.device())).square().mean();
  last.mean("averaged", averaged, static_cast<double>(data.size()));
  const auto values = last.write(0);
  if (ctx.is_main())
    print_numbers(type.c_str(), values);
}

// A step of a model that is not wrapped.
void train_bare(muster::Context& ctx, bool unreduced) {
  ProbeNet net;
  net->to(ctx.device());
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  muster::TrainStep step(net, optimizer, {.unreduced = unreduced});
  step.run(1, true, [&] { return net(torch::ones({4, 16}, ctx.device())).square().mean(); });
  std::printf("steps %ld\n", static_cast<long>(step.steps()));
}

void train_with(muster::Context& ctx, auto&& batches) {
  muster::DistributedDataParallel model(torch::nn::Linear(16, 4), ctx.process_group());
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  muster::TrainStep step(model, optimizer);
  for (const auto& batch : batches)
    step(batch, [&] { return torch::cross_entropy_loss(model(batch.features), batch.labels); });
  std::printf("steps %ld\n", static_cast<long>(step.steps()));
}

// Of 7 samples, one a batch, a rank of two has 4 and the other 3.
void train_with_own_loader(muster::Context& ctx, const std::string& what) {
  auto data = probe_data();
  if (what == "undivided" || what == "own") {
    if (what == "own")
      data = {data.features() + ctx.rank(), data.labels()};
    muster::DataLoader loader(data, {.batch_size = 8, .undivided = what == "own"});
    return train_with(ctx, loader.steps(3));
  }
  const bool is_uneven = what == "uneven";
  if (is_uneven)
    data = {data.features().narrow(0, 0, 7), data.labels().narrow(0, 0, 7)};
  muster::DistributedSampler sampler(data.size(),
                                     {.num_replicas = ctx.world_size(),
                                      .rank = ctx.rank(),
                                      .seed = what == "seed" ? ctx.rank() : 0,
                                      .pad = !is_uneven});
  muster::DataLoader loader(data, sampler, {.batch_size = is_uneven ? 1 : 8});
  train_with(ctx, loader.steps(6));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    at::set_num_threads(1);
    if (what == "bare" || what == "unreduced")
      return train_bare(ctx, what == "unreduced");
    if (!what.empty())
      return train_with_own_loader(ctx, what);
    for (const char* type : {"fp32", "bf16", "fp16"})
      train_probe(ctx, type);
  });
}
