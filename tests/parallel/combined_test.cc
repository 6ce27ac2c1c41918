// Data, pipeline and tensor parallelism in one mesh: each combination trains as one process does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <mutex>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/tensor/tensor_parallel.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

constexpr int64_t kWidth = 8, kBlocks = 4, kBatch = 16, kMicroBatches = 4, kSteps = 20;
constexpr double kBound = 2e-6;  // sums of other lengths are rounded at other places

struct Layers {
  torch::nn::Linear up{nullptr}, down{nullptr};
};

// The same on every rank, whatever it keeps of them. Ranks are threads, and torch's generator is
// theirs together.
std::vector<Layers> whole_layers() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(5);
  std::vector<Layers> layers;
  for (int64_t i = 0; i < kBlocks; ++i)
    layers.push_back(
        {torch::nn::Linear(kWidth, 2 * kWidth), torch::nn::Linear(2 * kWidth, kWidth)});
  return layers;
}

struct WholeBlockImpl : torch::nn::Module {
  explicit WholeBlockImpl(const Layers& layers) : up(layers.up), down(layers.down) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(WholeBlock);

struct DividedBlockImpl : torch::nn::Module {
  DividedBlockImpl(const Layers& layers, const ProcessGroup& tp)
      : up(column_parallel(layers.up, tp)), down(row_parallel(layers.down, tp)) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  ColumnParallelLinear up;
  RowParallelLinear down;
};
TORCH_MODULE(DividedBlock);

// Blocks `first` … `first + count - 1`, divided over `tp`.
torch::nn::Sequential blocks(int64_t first, int64_t count, const ProcessGroup& tp) {
  const auto layers = whole_layers();
  torch::nn::Sequential stage;
  for (int64_t i = first; i < first + count; ++i)
    stage->push_back(DividedBlock(layers[static_cast<size_t>(i)], tp));
  return stage;
}

at::Tensor batch_of_step(int64_t step, const char* what) {
  const double shift = what[0] == 'x' ? 0.1 : 0.7;
  const auto at = torch::arange(kBatch * kWidth, at::kFloat).view({kBatch, kWidth});
  return (at * (shift + 0.01 * static_cast<double>(step))).sin();
}

std::vector<double> losses_of_one_process() {
  torch::nn::Sequential net;
  for (const Layers& layers : whole_layers())
    net->push_back(WholeBlock(layers));
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(net->forward(batch_of_step(step, "x")), batch_of_step(step, "y"));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// This rank's samples of a step.
at::Tensor own(const at::Tensor& batch, Mesh& mesh) {
  return batch.chunk(mesh.size("dp"))[static_cast<size_t>(mesh.rank("dp"))];
}

double mean_over(ProcessGroup& group, const at::Tensor& loss) {
  at::Tensor sum = loss.detach().to(at::kDouble).clone();
  group.all_reduce(sum);
  return sum.item<double>() / group.size();
}

struct Shape {
  int dp, pp, tp;
};
class MeshOf : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(All,
                         MeshOf,
                         ::testing::Values(Shape{2, 1, 2},
                                           Shape{2, 2, 1},
                                           Shape{1, 2, 2},
                                           Shape{2, 2, 2},
                                           Shape{1, 4, 2}),
                         [](const auto& shape) {
                           return "dp" + std::to_string(shape.param.dp) + "pp" +
                                  std::to_string(shape.param.pp) + "tp" +
                                  std::to_string(shape.param.tp);
                         });

TEST_P(MeshOf, PipelinesOfDividedLayersTrainAsOneProcess) {
  const auto [dp, pp, tp] = GetParam();
  const auto expected = losses_of_one_process();
  run_ranks(dp * pp * tp, [&, dp = dp, pp = pp, tp = tp](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", dp}, {"pp", pp}, {"tp", tp}});
    const int64_t count = kBlocks / pp;
    Pipeline pipeline({blocks(mesh.rank("pp") * count, count, mesh.group("tp"))},
                      mesh.group("pp"),
                      {.schedule = one_f_one_b(pp, kMicroBatches),
                       .loss = [](const at::Tensor& y,
                                  const at::Tensor& target) { return torch::mse_loss(y, target); },
                       .share_loss = true});
    pipeline.average_over(mesh.group("dp"));
    torch::optim::AdamW optimizer(pipeline.parameters(), 1e-2);
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto loss =
          pipeline.step(own(batch_of_step(step, "x"), mesh), own(batch_of_step(step, "y"), mesh));
      optimizer.step();
      EXPECT_NEAR(mean_over(mesh.group("dp"), loss), expected[static_cast<size_t>(step)], kBound)
          << step;
    }
  });
}

TEST(Combined, DistributedDataParallelOverDividedLayersTrainsAsOneProcess) {
  const auto expected = losses_of_one_process();
  run_ranks(4, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", 2}, {"tp", 2}});
    auto net = blocks(0, kBlocks, mesh.group("tp"));
    DistributedDataParallel model(net, mesh.group("dp"));
    torch::optim::AdamW optimizer(net->parameters(), 1e-2);
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto loss = torch::mse_loss(model(own(batch_of_step(step, "x"), mesh)),
                                        own(batch_of_step(step, "y"), mesh));
      loss.backward();
      optimizer.step();
      EXPECT_NEAR(mean_over(mesh.group("dp"), loss), expected[static_cast<size_t>(step)], kBound)
          << step;
    }
  });
}

}  // namespace
}  // namespace muster::testing
