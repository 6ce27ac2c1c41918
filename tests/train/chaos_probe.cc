// A training that is killed, stopped, starved and resumed by others: chaos_test.py does it. What it
// must end with depends on nothing that happened to it.
//
//   chaos_probe [--steps N] [--way plain|background|zero|full] [--resume] [--until N] [--pause MS]
//
// Each rank appends the samples of every step it has finished to `samples-<rank>` in the run's
// folder, and its loss, with all bits, to `losses-<rank>`. A step that is taken again is written
// again. At the end rank 0 prints the sum of the weights and a digest of all that was trained. A
// file `last` in the run's folder moves the end to the step that it names.
#include <fcntl.h>
#include <muster/muster.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/digest.h"

namespace {

using muster::testing::digest_of;
using muster::testing::joined;
using muster::testing::moments_of;

constexpr int64_t kSamples = 96;
constexpr int64_t kGlobalBatch = 12;

struct Options {
  int64_t steps = 1'000'000'000;  // until `last` says where
  int64_t until = 0;              // ends there, as if it had been asked to stop
  int64_t pause_ms = 0;
  std::string way = "plain";
  bool resume = false;
};

// A sample's feature 0 is its number.
muster::TensorDataset numbered_samples() {
  const auto x = torch::randn({kSamples, 6}, at::detail::createCPUGenerator(2));
  x.select(1, 0).copy_(torch::arange(kSamples));
  return {x, x.slice(1, 1).sum(1).gt(0).to(torch::kLong)};
}

void append(const std::string& path, const std::string& line) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0 || ::write(file, line.data(), line.size()) != std::ssize(line))
    std::abort();
  ::close(file);
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : up(register_module("up", torch::nn::Linear(5, 32))),
        down(register_module("down", torch::nn::Linear(32, 2))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::tanh(up(x.slice(1, 1)))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Net);

using Adam = torch::optim::AdamW;

// One way of training: what is saved, and how a step is taken.
struct Training {
  Training(muster::Context& ctx, const Options& options) : way(options.way), net(Net()) {
    const auto group = ctx.process_group();
    if (way == "full") {
      sharded.emplace(group);
      model.emplace(sharded->wrap(net));
      optimizer = std::make_unique<Adam>(sharded->parameters(), 0.01);
    } else if (way == "zero") {
      auto zero =
          std::make_unique<muster::ShardedOptimizer<Adam>>(net->parameters(),
                                                           torch::optim::AdamWOptions(0.01),
                                                           group,
                                                           muster::ShardedOptimizerOptions{});
      zero_optimizer = zero.get();
      optimizer = std::move(zero);
    } else {
      optimizer = std::make_unique<Adam>(net->parameters(), 0.01);
    }
  }

  void add_to(muster::Checkpoints& checkpoints) {
    if (way == "full") {
      checkpoints.add("model", sharded->pieces(*net))
          .add("optimizer", *optimizer, sharded->pieces(*net));
    } else if (way == "zero") {
      checkpoints.add("model", net).add("optimizer", *zero_optimizer, zero_optimizer->pieces(*net));
    } else {
      checkpoints.add("model", net).add("optimizer", *optimizer);
    }
  }

  void begin(muster::Context& ctx) {
    if (!sharded)
      replicated.emplace(net, ctx.process_group());
    muster::TrainStepOptions options;
    options.group = ctx.process_group();
    replicated ? step.emplace(*replicated, *optimizer, options)
               : step.emplace(net, *optimizer, options);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return replicated ? (*replicated)(x) : (*model)(x);
  }

  std::string way;
  Net net;
  std::optional<muster::FullySharded> sharded;
  std::optional<muster::FullyShardedModule<Net>> model;
  muster::ShardedOptimizer<Adam>* zero_optimizer = nullptr;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::optional<muster::DistributedDataParallel<Net>> replicated;
  std::optional<muster::TrainStep> step;
};

std::string samples_of(const torch::Tensor& features) {
  std::string text;
  for (int64_t i = 0; i < features.size(0); ++i)
    text += muster::cat(' ', static_cast<int64_t>(features[i][0].item<float>()));
  return text;
}

std::string hex(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", number);
  return text;
}

// The last step: as given, or as the file `last` says. The file is there some steps before, so that
// every rank has read it when the step comes.
int64_t last_step(const muster::Context& ctx, const Options& options) {
  std::ifstream file(ctx.run_dir() + "/last");
  if (int64_t step = 0; file >> step)
    return step;
  return options.until > 0 ? options.until : options.steps;
}

void write_down(const muster::Context& ctx, int64_t step, const std::string& samples, double loss) {
  const auto of_rank = [&](const char* what) {
    return muster::cat(ctx.run_dir(), '/', what, '-', ctx.rank());
  };
  append(of_rank("samples"), muster::cat(step, samples, '\n'));
  append(of_rank("losses"), muster::cat(step, ' ', hex(loss), '\n'));
}

void train_in_chaos(muster::Context& ctx, const Options& options) {
  at::set_num_threads(1);
  ctx.seed_all(1);
  Training training(ctx, options);
  auto data = ctx.loader(numbered_samples(),
                         {.batch_size = kGlobalBatch / ctx.world_size(), .workers = 1},
                         {.seed = 5});
  muster::Checkpoints checkpoints(
      ctx, {.every = 2, .resume = options.resume, .background = options.way != "plain"});
  training.add_to(checkpoints);
  checkpoints.add("data", data);
  checkpoints.restore();
  training.begin(ctx);
  int64_t done = data.position().step;
  for (const auto& batch : data.steps(last_step(ctx, options))) {
    const auto loss = (*training.step)(batch, [&] {
      return torch::cross_entropy_loss(training.forward(batch.features), batch.labels);
    });
    done = data.position().step;
    write_down(ctx, done, samples_of(batch.features), loss.item<double>());
    if (options.pause_ms > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
    if (checkpoints.save_or_stop(done))
      return;
    if (ctx.is_main())
      append(ctx.run_dir() + "/steps", muster::cat(done, '\n'));
    if (done == last_step(ctx, options))
      break;
  }
  checkpoints.save(done);
  checkpoints.finish();
  const auto whole = training.sharded ? training.sharded->whole_parameters() : nullptr;
  double sum = 0;
  for (const auto& tensor : training.net->parameters())
    sum += tensor.to(torch::kDouble).abs().sum().item<double>();
  torch::optim::Optimizer& optimizer =
      training.zero_optimizer != nullptr ? training.zero_optimizer->part() : *training.optimizer;
  const auto states = ctx.process_group().all_gather_bytes(
      digest_of(joined(training.net->parameters(), moments_of(optimizer))), "of states");
  if (ctx.is_main())
    std::printf("weights %a %s\n", sum, muster::join(states, "-").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const auto is = [&](const char* name) {
      return std::strcmp(argv[i], name) == 0;
    };
    if (is("--resume"))
      options.resume = true;
    if (i + 1 == argc)
      break;
    if (is("--steps"))
      options.steps = std::atoll(argv[i + 1]);
    if (is("--until"))
      options.until = std::atoll(argv[i + 1]);
    if (is("--pause"))
      options.pause_ms = std::atoll(argv[i + 1]);
    if (is("--way"))
      options.way = argv[i + 1];
  }
  return muster::run(argc, argv, [&](muster::Context& ctx) { train_in_chaos(ctx, options); });
}
