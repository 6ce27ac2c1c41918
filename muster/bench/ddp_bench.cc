#include "muster/bench/ddp_bench.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/bench/bench_results.h"
#include "muster/comm/init.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/run/run.h"

namespace muster {

namespace {

constexpr int kWarmUpSteps = 3;
constexpr int64_t kLabels = 10;

// 23 million parameters in seven layers.
torch::nn::Sequential make_mlp() {
  constexpr int64_t kInputs = 1024, kHidden = 2048;
  torch::nn::Sequential model;
  model->push_back(torch::nn::Linear(kInputs, kHidden));
  for (int layer = 0; layer < 5; ++layer) {
    model->push_back(torch::nn::ReLU());
    model->push_back(torch::nn::Linear(kHidden, kHidden));
  }
  model->push_back(torch::nn::ReLU());
  model->push_back(torch::nn::Linear(kHidden, kLabels));
  return model;
}

// ResNet-18's layers without its shortcuts: 11 million parameters, on pictures of 32 × 32.
torch::nn::Sequential make_cnn() {
  torch::nn::Sequential model;
  int64_t channels = 3;
  const auto add = [&](int64_t width, int64_t stride) {
    model->push_back(torch::nn::Conv2d(
        torch::nn::Conv2dOptions(channels, width, 3).stride(stride).padding(1).bias(false)));
    model->push_back(torch::nn::BatchNorm2d(width));
    model->push_back(torch::nn::ReLU());
    channels = width;
  };
  add(64, 1);
  for (const int64_t width : {64, 128, 256, 512}) {
    for (int layer = 0; layer < 4; ++layer) add(width, layer == 0 && width != 64 ? 2 : 1);
  }
  model->push_back(torch::nn::AdaptiveAvgPool2d(1));
  model->push_back(torch::nn::Flatten());
  model->push_back(torch::nn::Linear(512, kLabels));
  return model;
}

// One kind of training: alone, or over a backend with or without views of the buckets.
class Kind {
 public:
  Kind(Context& ctx, const DdpBenchOptions& options, const std::string& backend, bool view)
      : name_(backend.empty() ? "none" : cat(backend, view ? "" : ", copied")) {
    torch::manual_seed(0);
    model_ = options.model == "mlp" ? make_mlp() : make_cnn();
    model_->to(ctx.device());
    optimizer_.emplace(model_->parameters(), torch::optim::SGDOptions(1e-4));
    const std::vector<int64_t> shape = options.model == "mlp"
                                           ? std::vector<int64_t>{options.batch, 1024}
                                           : std::vector<int64_t>{options.batch, 3, 32, 32};
    inputs_ = torch::randn(shape, ctx.device());
    labels_ =
        torch::randint(kLabels, {options.batch}, torch::TensorOptions(torch::kLong).device(ctx.device()));
    if (backend.empty()) return;
    const auto store = c10::make_intrusive<c10d::PrefixStore>("bench/" + name_, ctx.store());
    group_ =
        init_process_group(store, ctx.rank(), ctx.world_size(), {.backend = backend, .device = ctx.device()});
    ddp_ = std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(
        model_, *group_, DdpOptions{.gradient_as_bucket_view = view});
  }

  void step() {
    optimizer_->zero_grad();
    const auto outputs = ddp_ ? ddp_->forward(inputs_) : model_->forward(inputs_);
    const auto loss = torch::cross_entropy_loss(outputs, labels_);
    loss.backward();
    optimizer_->step();
    last_loss_ = loss.item<double>();
  }

  // Milliseconds: the median of the steps, of the slowest rank. All ranks start each step together.
  double time(ProcessGroup& control, int steps) {
    for (int i = 0; i < kWarmUpSteps; ++i) step();
    std::vector<double> times;
    for (int i = 0; i < steps; ++i) {
      control.barrier();
      const auto start = Clock::now();
      step();
      times.push_back(seconds_since(start) * 1e3);
    }
    std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
    auto slowest = torch::tensor({times[static_cast<size_t>(steps / 2)]}, at::kDouble);
    control.all_reduce(slowest, ReduceOp::max);
    return slowest.item<double>();
  }

  void leave() {
    ddp_.reset();
    if (group_) group_->shutdown();
  }

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  torch::nn::Sequential model_;
  std::optional<torch::optim::SGD> optimizer_;
  at::Tensor inputs_, labels_;
  std::optional<ProcessGroup> group_;
  std::unique_ptr<DistributedDataParallel<torch::nn::Sequential>> ddp_;
  double last_loss_ = 0;
};

void print_table(const std::vector<std::string>& names, const std::vector<double>& best,
                 const DdpBenchOptions& options) {
  std::printf("# a step of %s, batch %ld a rank, %d ranks; least of %d medians\n", options.model.c_str(),
              static_cast<long>(options.batch), options.ranks, options.rounds);
  std::printf("%-16s %10s %14s %14s\n", "", "ms", "ms beyond none", "ratio to none");
  for (size_t i = 0; i < names.size(); ++i)
    std::printf("%-16s %10.2f %14.2f %14.3f\n", names[i].c_str(), best[i], best[i] - best[0],
                best[i] / best[0]);
  std::fflush(stdout);
}

std::string as_json(const std::vector<std::string>& names, const std::vector<double>& best,
                    const DdpBenchOptions& options) {
  nlohmann::json kinds = nlohmann::json::object();
  for (size_t i = 0; i < names.size(); ++i) kinds[names[i]] = best[i];
  return nlohmann::json{
      {"model", options.model}, {"batch", options.batch}, {"ranks", options.ranks}, {"ms", kinds}}
      .dump(2);
}

void measure_steps(Context& ctx, const DdpBenchOptions& options) {
  std::vector<std::unique_ptr<Kind>> kinds;
  kinds.push_back(std::make_unique<Kind>(ctx, options, "", true));
  for (const char* backend : {"gloo", "shm"}) {
    for (const bool view : {true, false})
      kinds.push_back(std::make_unique<Kind>(ctx, options, backend, view));
  }
  std::vector<double> best(kinds.size(), 1e18);
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < kinds.size(); ++i)
      best[i] = std::min(best[i], kinds[i]->time(ctx.process_group(), options.steps));
  }
  std::vector<std::string> names;
  for (const auto& kind : kinds) {
    names.push_back(kind->name());
    kind->leave();
  }
  if (!ctx.is_main()) return;
  leave_results(as_json(names, best, options));
  if (!options.json) print_table(names, best, options);
}

}  // namespace

int bench_ddp(const DdpBenchOptions& options, int argc, char** argv) {
  if (options.model != "mlp" && options.model != "cnn")
    throw Error(ErrorCode::invalid_argument, cat("--model: expected mlp or cnn, got '", options.model, "'"));
  return run_bench(options.ranks, options.json, argc, argv,
                   [&](Context& ctx) { measure_steps(ctx, options); });
}

}  // namespace muster
