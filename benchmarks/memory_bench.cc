// The most bytes that a rank's tensors take while a GPT trains, by each way of dividing the work,
// and what the formulas of `muster plan --model` say. Ranks are processes over Gloo; tensors lie in
// host memory and are counted where they are allocated.
//
//   memory_bench [RANKS] [--check] [--model small]
//
// RANKS: 2; with 4 also the meshes dp=2,tp=2 and dp=2,pp=2 and pp=2,tp=2. --check: exit code 1 if a
// measured peak is below 0.9 or above 1.1 of its formula's. --model: one model alone, or the small
// one of `make test`.
//
// Measured from when the model is built: the example builds it in host memory, and moves to the
// device what is the rank's.
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <muster/muster.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "examples/02_gpt/gpt.h"
#include "examples/02_gpt/parallel.h"
#include "examples/02_gpt/sharded.h"
#include "examples/02_gpt/stage.h"
#include "muster/placement/model_memory.h"

namespace {

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

void count(int64_t bytes) {
  const int64_t now = live_bytes.fetch_add(bytes) + bytes;
  int64_t peak = peak_bytes.load();
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
}

void free_counted(void* data) {
  if (data != nullptr)
    count(-static_cast<int64_t>(::malloc_usable_size(data)));
  std::free(data);  // NOLINT(cppcoreguidelines-no-malloc)
}

// Host memory, and a count of what is given.
struct CountingAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0)
      return {nullptr, nullptr, free_counted, c10::Device(c10::kCPU)};
    constexpr size_t kAlignment = 64;
    void* const data =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data == nullptr)
      throw std::bad_alloc();
    count(static_cast<int64_t>(::malloc_usable_size(data)));
    return {data, data, free_counted, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_counted; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

struct Size {
  const char* name;
  muster::ModelSizes sizes;
};

// One whose activations are most, one whose parameters are, one that is little but a vocabulary.
const Size kSizes[] = {
    {"long",
     {.layers = 4, .width = 128, .heads = 4, .context = 256, .vocabulary = 512, .batch = 8}},
    {"wide",
     {.layers = 4, .width = 512, .heads = 8, .context = 64, .vocabulary = 2048, .batch = 4}},
    {"ends",
     {.layers = 4, .width = 128, .heads = 4, .context = 32, .vocabulary = 16384, .batch = 4}},
    {"long",
     {.layers = 4,
      .width = 128,
      .heads = 4,
      .context = 256,
      .vocabulary = 512,
      .batch = 8,
      .bf16 = true}},
    {"wide",
     {.layers = 4,
      .width = 512,
      .heads = 8,
      .context = 64,
      .vocabulary = 2048,
      .batch = 4,
      .bf16 = true}}};

// Takes a second: for `make test`.
const Size kSmall = {
    "small",
    {.layers = 4, .width = 128, .heads = 4, .context = 128, .vocabulary = 512, .batch = 4}};

constexpr int kSteps = 3;

// What --check lets a measured peak be, by its formula's.
constexpr double kLeastRatio = 0.9, kMostRatio = 1.1;

struct BenchOptions {
  std::string ranks = "2";
  bool check = false;
  std::string model;
};

using torch::optim::AdamW;
using ShardedAdamW = muster::ShardedOptimizer<AdamW>;

GptOptions gpt_options(const muster::ModelSizes& sizes) {
  return {.vocabulary = sizes.vocabulary,
          .layers = sizes.layers,
          .heads = sizes.heads,
          .width = sizes.width,
          .context = sizes.context};
}

muster::Precision precision_of(const muster::ModelSizes& sizes) {
  return {c10::kCPU, sizes.bf16 ? "bf16" : "fp32"};
}

// What comes from here on counts.
void begin_to_measure() {
  peak_bytes = live_bytes.load();
}

// The example moves a stage's parameters to the device; here what other stages have goes.
void drop_other_stages(const ParallelGpt& model, const GptStage& stage) {
  std::set<const c10::TensorImpl*> own;
  for (const auto& parameter : stage->parameters())
    own.insert(parameter.unsafeGetTensorImpl());
  for (auto& parameter : model->parameters())
    if (!own.contains(parameter.unsafeGetTensorImpl()))
      parameter.set_data(torch::empty({0}));
}

// Along pp; data parallel along dp, tensor parallel along tp.
void train_in_stages(const muster::ModelSizes& sizes, muster::Mesh& mesh) {
  torch::manual_seed(1);
  Gpt whole(gpt_options(sizes));
  ParallelGpt model(whole, mesh.group("tp"));
  whole = nullptr;
  GptStage stage(model, mesh.rank("pp"), mesh.size("pp"));
  drop_other_stages(model, stage);
  const muster::Precision precision = precision_of(sizes);
  muster::PipelineStage part(stage);
  part.forward = [&](const at::Tensor& x) {
    return precision.run([&] { return stage(x); });
  };
  muster::Pipeline pipeline(
      {part},
      mesh.group("pp"),
      {.schedule = muster::one_f_one_b(mesh.size("pp"), static_cast<int>(sizes.batch)),
       .loss = [&](const auto& logits, const auto& targets) {
         return model->loss(logits, targets);
       }});
  if (mesh.size("dp") > 1)
    pipeline.average_over(mesh.group("dp"));
  AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-3));
  begin_to_measure();
  for (int i = 0; i < kSteps; ++i) {
    const auto tokens =
        torch::randint(sizes.vocabulary, {sizes.batch, sizes.context}, torch::kLong);
    optimizer.zero_grad();
    pipeline.step(tokens, tokens.roll(1, 1));
    optimizer.step();
  }
}

using BenchLoss =
    std::function<torch::Tensor(const torch::Tensor& tokens, const torch::Tensor& targets)>;

void train_steps(const muster::ModelSizes& sizes,
                 const BenchLoss& loss,
                 const std::function<void()>& zero,
                 const std::function<void()>& step) {
  const muster::Precision precision = precision_of(sizes);
  begin_to_measure();
  for (int i = 0; i < kSteps; ++i) {
    const auto tokens =
        torch::randint(sizes.vocabulary, {sizes.batch, sizes.context}, torch::kLong);
    zero();
    precision.run([&] { return loss(tokens, tokens.roll(1, 1)); }).backward();
    step();
  }
}

// Tensor parallel, and data parallel around it where there are several replicas.
void train_divided(const muster::ModelSizes& sizes,
                   muster::ProcessGroup dp,
                   const muster::ProcessGroup& tp) {
  torch::manual_seed(1);
  Gpt whole(gpt_options(sizes));
  ParallelGpt model(whole, tp);
  whole = nullptr;
  AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  std::unique_ptr<muster::DistributedDataParallel<ParallelGpt>> replicated;
  if (dp.size() > 1)
    replicated = std::make_unique<muster::DistributedDataParallel<ParallelGpt>>(model, dp);
  train_steps(
      sizes,
      [&](const auto& tokens, const auto& targets) {
        return model->loss(replicated ? (*replicated)(tokens) : model(tokens), targets);
      },
      [&] { optimizer.zero_grad(); },
      [&] { optimizer.step(); });
}

void train_fully_sharded(const muster::ModelSizes& sizes, const muster::ProcessGroup& group) {
  torch::manual_seed(1);
  Gpt whole(gpt_options(sizes));
  muster::FullySharded sharded(group);
  auto model = sharded.wrap(ShardedGpt(whole, sharded, c10::kCPU));
  AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-3));
  train_steps(
      sizes,
      [&](const auto& tokens, const auto& targets) {
        return next_token_loss(model(tokens), targets);
      },
      [&] { optimizer.zero_grad(); },
      [&] { optimizer.step(); });
}

void train_data_parallel(const muster::ModelSizes& sizes,
                         muster::Sharding sharding,
                         muster::ProcessGroup group) {
  torch::manual_seed(1);
  Gpt net(gpt_options(sizes));
  const torch::optim::AdamWOptions adamw(1e-3);
  if (sharding == muster::Sharding::gradients) {
    ShardedAdamW optimizer(net->parameters(), adamw, group, {.gradients = true});
    return train_steps(
        sizes,
        [&](const auto& tokens, const auto& targets) {
          return next_token_loss(net(tokens), targets);
        },
        [&] { optimizer.zero_grad(); },
        [&] { optimizer.step(); });
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer =
      std::make_unique<AdamW>(net->parameters(), adamw);
  if (sharding == muster::Sharding::optimizer)
    optimizer = std::make_unique<ShardedAdamW>(net->parameters(), adamw, group);
  muster::DistributedDataParallel model(net, group);
  train_steps(
      sizes,
      [&](const auto& tokens, const auto& targets) {
        return next_token_loss(model(tokens), targets);
      },
      [&] { optimizer->zero_grad(); },
      [&] { optimizer->step(); });
}

void train_one_way(const muster::ModelDivision& way,
                   const muster::ModelSizes& sizes,
                   muster::ProcessGroup group) {
  if (way.pipeline > 1 || way.tensor > 1) {
    muster::Mesh mesh(group, {{"dp", way.data}, {"pp", way.pipeline}, {"tp", way.tensor}});
    way.pipeline > 1 ? train_in_stages(sizes, mesh)
                     : train_divided(sizes, mesh.group("dp"), mesh.group("tp"));
    return mesh.shutdown();
  }
  if (way.sharding == muster::Sharding::all)
    return train_fully_sharded(sizes, group);
  train_data_parallel(sizes, way.sharding, group);
}

// The largest over the ranks.
int64_t measured_bytes(const muster::ModelDivision& way,
                       const muster::ModelSizes& sizes,
                       muster::ProcessGroup group) {
  group.barrier();
  const int64_t before = live_bytes;
  peak_bytes = before;
  train_one_way(way, sizes, group);
  at::Tensor most = torch::full({1}, peak_bytes - before, at::kLong);
  group.all_reduce(most, muster::ReduceOp::max);
  return most.item<int64_t>();
}

std::vector<muster::ModelDivision> ways_over(int ranks) {
  std::vector<muster::ModelDivision> ways = muster::model_divisions(ranks, {});
  if (ranks == 4) {
    ways.push_back({.name = "dp 2, tp 2", .data = 2, .tensor = 2});
    ways.push_back({.name = "dp 2, pp 2", .data = 2, .pipeline = 2});
    ways.push_back({.name = "pp 2, tp 2", .pipeline = 2, .tensor = 2});
  }
  return ways;
}

std::vector<Size> sizes_named(const std::string& name) {
  if (name == kSmall.name)
    return {kSmall};
  std::vector<Size> sizes;
  for (const Size& size : kSizes)
    if (name.empty() || name == size.name)
      sizes.push_back(size);
  return sizes;
}

// Prints the row, and returns the measured peak by the formula's.
double compare_way(muster::Context& ctx, const Size& size, const muster::ModelDivision& way) {
  const auto formula = static_cast<double>(muster::rank_bytes(size.sizes, way).total());
  const auto measured = static_cast<double>(measured_bytes(way, size.sizes, ctx.process_group()));
  if (ctx.is_main())
    std::printf("%-6s %-9s %-16s %6.1f MiB %6.1f MiB %8.3f\n",
                size.name,
                size.sizes.bf16 ? "bf16" : "fp32",
                way.name.c_str(),
                formula / (1 << 20),
                measured / (1 << 20),
                measured / formula);
  return measured / formula;
}

void compare_ways(muster::Context& ctx, const BenchOptions& options) {
  at::set_num_threads(1);
  if (ctx.is_main())
    std::printf("%-6s %-9s %-16s %10s %10s %8s\n",
                "model",
                "precision",
                "way",
                "formula",
                "measured",
                "ratio");
  int outside = 0;
  for (const Size& size : sizes_named(options.model)) {
    for (const muster::ModelDivision& way : ways_over(ctx.world_size())) {
      const double ratio = compare_way(ctx, size, way);
      if (ratio < kLeastRatio || ratio > kMostRatio)
        ++outside;
    }
  }
  if (options.check && outside > 0)
    throw muster::Error(muster::ErrorCode::internal,
                        muster::cat("memory_bench --check: expected all ratios within ",
                                    kLeastRatio,
                                    " and ",
                                    kMostRatio,
                                    ", got ",
                                    outside,
                                    " outside: put model_memory.cc right, or ",
                                    "the way that takes more than it says"));
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app(
      "The memory of a rank while a GPT trains, beside the formulas of muster plan --model");
  app.add_option("ranks", options.ranks, "their number, 2 or 4 (default 2)");
  app.add_flag("--check", options.check, "exit code 1 for a ratio outside of 0.9 and 1.1");
  app.add_option("--model", options.model, "one of them alone")
      ->check(CLI::IsMember({"long", "wide", "ends", "small"}));
  CLI11_PARSE(app, argc, argv);
  ::setenv("MUSTER_BACKEND", "gloo", 1);  // gradients in shared memory would not be counted
  ::setenv("MUSTER_NPROC", options.ranks.c_str(), 0);
  CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 100);
  return muster::run(argc, argv, [&](muster::Context& ctx) { compare_ways(ctx, options); });
}
