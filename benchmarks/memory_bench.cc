// The most bytes that a rank's tensors take while a GPT trains, by each way of dividing the work, and what
// the formulas of `muster plan --model` say. Ranks are processes over Gloo; tensors lie in host memory and
// are counted where they are allocated.
//
//   memory_bench [RANKS]      2
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <muster/muster.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "examples/02_gpt/gpt.h"
#include "examples/02_gpt/parallel.h"
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
  if (data != nullptr) count(-static_cast<int64_t>(::malloc_usable_size(data)));
  std::free(data);  // NOLINT(cppcoreguidelines-no-malloc)
}

// Host memory, and a count of what is given.
struct CountingAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, free_counted, c10::Device(c10::kCPU)};
    constexpr size_t kAlignment = 64;
    void* const data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data == nullptr) throw std::bad_alloc();
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

// One whose activations are most, one whose parameters are.
const Size kSizes[] = {
    {"long", {.layers = 4, .width = 128, .heads = 4, .context = 256, .vocabulary = 512, .batch = 8}},
    {"wide", {.layers = 4, .width = 512, .heads = 8, .context = 64, .vocabulary = 2048, .batch = 4}}};

constexpr int kSteps = 3;

using AdamW = torch::optim::AdamW;
using ShardedAdamW = muster::ShardedOptimizer<AdamW>;

GptOptions gpt_options(const muster::ModelSizes& sizes) {
  return {.vocabulary = sizes.vocabulary,
          .layers = sizes.layers,
          .heads = sizes.heads,
          .width = sizes.width,
          .context = sizes.context};
}

// The blocks of one stage, the token vectors before the first and the head after the last.
struct GptStageImpl : torch::nn::Module {
  GptStageImpl(Gpt& whole, int64_t number, int64_t stages) {
    const int64_t layers = whole->options.layers;
    const int64_t begin = number * (layers / stages) + std::min(number, layers % stages);
    const int64_t end = begin + layers / stages + (number < layers % stages ? 1 : 0);
    for (int64_t i = begin; i < end; ++i) blocks->push_back(whole->blocks->ptr(static_cast<size_t>(i)));
    register_module("blocks", blocks);
    if (number == 0) {
      token = register_module("token", whole->token);
      position = register_parameter("position", whole->position);
    }
    if (number + 1 < stages) return;
    norm = register_module("norm", whole->norm);
    head = register_module("head", whole->head);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    auto x = token ? token(input) + position.narrow(0, 0, input.size(1)) : input;
    for (const auto& block : *blocks) x = block->as<GptBlock>()->forward(x);
    return norm ? head(norm(x)) : x;
  }

  torch::nn::ModuleList blocks;
  torch::nn::Embedding token = nullptr;
  torch::Tensor position;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(GptStage);

void train_in_stages(const muster::ModelSizes& sizes, muster::ProcessGroup group) {
  torch::manual_seed(1);
  Gpt whole(gpt_options(sizes));
  GptStage stage(whole, group.rank(), group.size());
  whole = nullptr;
  muster::Pipeline pipeline({stage}, group,
                            {.schedule = muster::one_f_one_b(group.size(), static_cast<int>(sizes.batch)),
                             .loss = next_token_loss});
  AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-3));
  for (int i = 0; i < kSteps; ++i) {
    const auto tokens = torch::randint(sizes.vocabulary, {sizes.batch, sizes.context}, torch::kLong);
    optimizer.zero_grad();
    pipeline.step(tokens, tokens.roll(1, 1));
    optimizer.step();
  }
}

void train_divided(const muster::ModelSizes& sizes, muster::ProcessGroup group) {
  torch::manual_seed(1);
  Gpt whole(gpt_options(sizes));
  ParallelGpt model(whole, group);
  whole = nullptr;
  AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int i = 0; i < kSteps; ++i) {
    const auto tokens = torch::randint(sizes.vocabulary, {sizes.batch, sizes.context}, torch::kLong);
    optimizer.zero_grad();
    model->loss(model(tokens), tokens.roll(1, 1)).backward();
    optimizer.step();
  }
}

void train_steps(const std::function<torch::Tensor(const torch::Tensor&)>& forward,
                 const std::function<void()>& zero, const std::function<void()>& step,
                 const muster::ModelSizes& sizes) {
  for (int i = 0; i < kSteps; ++i) {
    const auto tokens = torch::randint(sizes.vocabulary, {sizes.batch, sizes.context}, torch::kLong);
    zero();
    next_token_loss(forward(tokens), tokens.roll(1, 1)).backward();
    step();
  }
}

void train_one_way(const std::string& way, const muster::ModelSizes& sizes, muster::ProcessGroup group) {
  if (way == "tensor parallel") return train_divided(sizes, group);
  if (way == "pipeline 1F1B") return train_in_stages(sizes, group);
  torch::manual_seed(1);
  Gpt net(gpt_options(sizes));
  const torch::optim::AdamWOptions adamw(1e-3);
  if (way == "ZeRO-2") {
    ShardedAdamW optimizer(net->parameters(), adamw, group, {.gradients = true});
    return train_steps([&](const auto& x) { return net(x); }, [&] { optimizer.zero_grad(); },
                       [&] { optimizer.step(); }, sizes);
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (way == "ZeRO-1") optimizer = std::make_unique<ShardedAdamW>(net->parameters(), adamw, group);
  if (way == "DDP") optimizer = std::make_unique<AdamW>(net->parameters(), adamw);
  muster::DistributedDataParallel model(net, group);
  train_steps([&](const auto& x) { return model(x); }, [&] { optimizer->zero_grad(); },
              [&] { optimizer->step(); }, sizes);
}

// The largest over the ranks.
int64_t measured_bytes(const std::string& way, const muster::ModelSizes& sizes, muster::ProcessGroup group) {
  group.barrier();
  const int64_t before = live_bytes;
  peak_bytes = before;
  train_one_way(way, sizes, group);
  at::Tensor most = torch::full({1}, peak_bytes - before, at::kLong);
  group.all_reduce(most, muster::ReduceOp::max);
  return most.item<int64_t>();
}

void compare_ways(muster::Context& ctx) {
  at::set_num_threads(1);
  if (ctx.is_main())
    std::printf("%-6s %-16s %10s %10s %8s\n", "model", "way", "formula", "measured", "ratio");
  for (const Size& size : kSizes) {
    for (const muster::ModelDivision& division : muster::model_divisions(ctx.world_size(), {})) {
      if (division.sharding == muster::Sharding::all) continue;
      const auto formula = static_cast<double>(muster::rank_bytes(size.sizes, division).total());
      const auto measured =
          static_cast<double>(measured_bytes(division.name, size.sizes, ctx.process_group()));
      if (ctx.is_main())
        std::printf("%-6s %-16s %6.1f MiB %6.1f MiB %8.3f\n", size.name, division.name.c_str(),
                    formula / (1 << 20), measured / (1 << 20), measured / formula);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::setenv("MUSTER_BACKEND", "gloo", 1);  // gradients in shared memory would not be counted
  ::setenv("MUSTER_NPROC", argc > 1 ? argv[1] : "2", 0);
  CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 100);
  return muster::run(argc, argv, compare_ways);
}
