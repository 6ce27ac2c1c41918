// Bytes of live tensors of each rank, counted by an allocator around LibTorch's: the formulas of
// docs/parallel/sharded.md.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

struct LiveBytes {
  std::atomic<int64_t> now = 0;
  int64_t peak = 0;  // of the thread that allocates
  int64_t shared_before = 0;
};
thread_local LiveBytes* bytes_of_this_rank = nullptr;

// Counts what a rank's thread allocates for that rank, whoever frees it.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* base) : base_(base) {}
  c10::DataPtr allocate(size_t size) override {
    auto block = std::make_unique<Block>(
        base_->allocate(size), static_cast<int64_t>(size), bytes_of_this_rank);
    if (LiveBytes* const bytes = bytes_of_this_rank)
      bytes->peak = std::max(bytes->peak, bytes->now += static_cast<int64_t>(size));
    void* const memory = block->memory.get();
    return {memory, block.release(), &free_block, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }

 private:
  struct Block {
    Block(c10::DataPtr memory_, int64_t size_, LiveBytes* owner_)
        : memory(std::move(memory_)), size(size_), owner(owner_) {}
    c10::DataPtr memory;
    int64_t size;
    LiveBytes* owner;
  };
  static void free_block(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    if (block->owner != nullptr)
      block->owner->now -= block->size;
  }
  c10::Allocator* base_;
};

// Of the memory that ranks share, all ranks' together: the pages that exist. Each rank has a
// descriptor of it.
int64_t shared_bytes() {
  std::map<ino_t, int64_t> bytes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    struct stat info{};
    if (std::filesystem::read_symlink(entry, gone).string().starts_with("/memfd:muster") &&
        ::stat(entry.path().c_str(), &info) == 0)
      bytes[info.st_ino] = info.st_blocks * 512;
  }
  int64_t sum = 0;
  for (const auto& [inode, of_one] : bytes)
    sum += of_one;
  return sum;
}

// Until the end of the scope. What was allocated meanwhile may live on.
class CountingScope {
 public:
  CountingScope() : base_(c10::GetCPUAllocator()) {
    static CountingAllocator counting(base_);
    c10::SetCPUAllocator(&counting, 100);
  }
  ~CountingScope() { c10::SetCPUAllocator(base_, 100); }
  CountingScope(const CountingScope&) = delete;
  CountingScope& operator=(const CountingScope&) = delete;

 private:
  c10::Allocator* base_;
};

constexpr int kLayers = 24, kWidth = 160;

struct ManyLayersImpl : torch::nn::Module {
  ManyLayersImpl() {
    const std::lock_guard lock(generator_mutex());
    torch::manual_seed(4);
    for (int i = 0; i < kLayers; ++i)
      layers.push_back(register_module(std::to_string(i), make()));
  }
  static std::shared_ptr<torch::nn::LinearImpl> make() {
    return std::make_shared<torch::nn::LinearImpl>(kWidth, kWidth);
  }
  void shard(FullySharded& by) {
    for (auto& layer : layers)
      sharded.push_back(by.wrap(layer));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i)
      x = torch::tanh(sharded.empty() ? layers[i]->forward(x) : sharded[i](x));
    return x;
  }
  std::vector<std::shared_ptr<torch::nn::LinearImpl>> layers;
  std::vector<FullyShardedModule<std::shared_ptr<torch::nn::LinearImpl>>> sharded;
};
TORCH_MODULE(ManyLayers);

constexpr double kLayerBytes = 4.0 * kWidth * (kWidth + 1), kModelBytes = kLayers * kLayerBytes;

template <class Forward>
void few_steps(Forward forward,
               torch::optim::Optimizer& optimizer,
               const std::function<void()>& zero_grad,
               LiveBytes& bytes) {
  for (int step = 0; step < 5; ++step) {
    if (step == 2)
      bytes.peak = bytes.now;  // buckets are cut anew in the second
    zero_grad();
    forward(torch::ones({1, kWidth})).sum().backward();
    optimizer.step();
  }
}

// The first rank's peak by what the formula says; each case adds what its page names. What lies in
// shared memory stays there, so that its peak is what is there in the end.
void expect_peak(const char* name, const LiveBytes& bytes, double formula, ProcessGroup& group) {
  group.barrier();
  const int64_t shared = (shared_bytes() - bytes.shared_before) / group.size();
  group.barrier();
  const int64_t peak = bytes.peak + shared;
  const double ratio = static_cast<double>(peak) / formula;
  if (group.rank() == 0)
    std::printf("%s, %d ranks: peak %.2f MB, formula %.2f MB, ratio %.3f\n",
                name,
                group.size(),
                static_cast<double>(peak) / 1e6,
                formula / 1e6,
                ratio);
  EXPECT_LE(ratio, 1.1);
  EXPECT_GE(ratio, 0.7);
}

class ShardedMemory : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedMemory, ::testing::Values(1, 2, 3, 4));

using torch::optim::Adam;
const torch::optim::AdamOptions kAdam(1e-3);

// DDP's buckets lie in the memory that ranks share, where they share it, and are not counted there.
// Over Gloo a reduce_scatter copies its input.
void run_counted(int ranks,
                 const char* backend,
                 const std::function<void(ProcessGroup&, LiveBytes&)>& body) {
  const CountingScope counting;
  run_ranks(ranks,
            [&](ProcessGroup& group) {
              static thread_local LiveBytes bytes;  // outlives the tensors
              bytes_of_this_rank = &bytes;
              at::set_num_threads(1);
              group.barrier();
              bytes.shared_before = shared_bytes();
              group.barrier();
              body(group, bytes);
              bytes_of_this_rank = nullptr;
            },
            {.backend = backend});
}

TEST_P(ShardedMemory, OfTheOptimizer) {
  run_counted(GetParam(), "gloo", [](ProcessGroup& group, LiveBytes& bytes) {
    ManyLayers model;
    DistributedDataParallel wrapped(model, group, {.bucket_cap_mb = 0.25});
    ShardedOptimizer<Adam> optimizer(model->parameters(), kAdam, group, {.bucket_mb = 0.25});
    few_steps([&](const auto& x) { return wrapped(x); },
              optimizer,
              [&] { optimizer.zero_grad(); },
              bytes);
    expect_peak("ZeRO-1", bytes, kModelBytes * (2 + 2.0 / group.size()), group);
  });
}

TEST_P(ShardedMemory, OfGradientsToo) {
  run_counted(GetParam(), "shm", [](ProcessGroup& group, LiveBytes& bytes) {
    ManyLayers model;
    ShardedOptimizer<Adam> optimizer(
        model->parameters(), kAdam, group, {.gradients = true, .bucket_mb = 0.1});
    few_steps(
        [&](const auto& x) { return model(x); }, optimizer, [&] { optimizer.zero_grad(); }, bytes);
    // A bucket is closed by the layer that makes it too large.
    expect_peak(
        "ZeRO-2", bytes, kModelBytes * (1 + 3.0 / group.size()) + 3 * 2 * kLayerBytes, group);
  });
}

TEST_P(ShardedMemory, OfEverything) {
  run_counted(GetParam(), "shm", [](ProcessGroup& group, LiveBytes& bytes) {
    FullySharded sharded(group);
    ManyLayers model;
    model->shard(sharded);
    Adam optimizer(sharded.parameters(), kAdam);
    few_steps(
        [&](const auto& x) { return model(x); }, optimizer, [&] { optimizer.zero_grad(); }, bytes);
    expect_peak("fully sharded", bytes, kModelBytes * 4.0 / group.size() + 4 * kLayerBytes, group);
  });
}

}  // namespace
}  // namespace muster::testing
