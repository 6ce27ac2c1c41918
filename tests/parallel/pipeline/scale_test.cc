// Steps of a pipeline whose gradients are scaled, and add up: those of one step over the joined
// batch. With fp16's loss scale all stages leave out a step that one of them cannot take.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "muster/base/error.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/train/precision.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

struct HalfNetImpl : torch::nn::Module {
  HalfNetImpl(const at::Tensor& value, bool bends)
      : weight(register_parameter("weight", value)), bends(bends) {}
  at::Tensor forward(const at::Tensor& x) {
    return bends ? x.matmul(weight).tanh() : x.matmul(weight);
  }
  at::Tensor weight;
  bool bends;
};
TORCH_MODULE(HalfNet);

at::Tensor wave(int64_t rows, double at) {
  return torch::arange(rows * 4, torch::kDouble).add(at).sin().view({rows, 4});
}
HalfNet half_net(int rank) {
  return HalfNet(wave(4, 0.5), rank == 0);  // equal: they are tied where a test wants it
}
at::Tensor distance(const at::Tensor& y, const at::Tensor& target) {
  return (y - target).square().mean();
}

const at::Tensor kX = wave(16, 1), kY = wave(16, 7);

// Gradients of both stages. `steps` share the batch out; over `replicas`, who share it out too.
std::vector<at::Tensor> summed_gradients(int replicas, int steps, bool tied, double scale) {
  std::vector<at::Tensor> gradients(2);
  run_ranks(2 * replicas, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", replicas}, {"pp", 2}});
    const int stage = mesh.rank("pp");
    HalfNet net = half_net(stage);
    Pipeline pipeline({net},
                      mesh.group("pp"),
                      {.schedule = one_f_one_b(2, 2), .loss = distance, .share_loss = true});
    if (tied)
      pipeline.tie(net->weight);
    if (replicas > 1)
      pipeline.average_over(mesh.group("dp"));
    for (int step = 0; step < steps; ++step) {
      const auto part = [&](const at::Tensor& whole) {
        return whole.chunk(replicas)[static_cast<size_t>(mesh.rank("dp"))].chunk(
            steps)[static_cast<size_t>(step)];
      };
      const at::Tensor loss =
          pipeline.step(part(kX), part(kY), {.scale = scale / steps, .reduce = step + 1 == steps});
      EXPECT_LT(loss.item<double>(), 3);  // without the scale
    }
    if (mesh.rank("dp") == 0)
      gradients[static_cast<size_t>(stage)] = net->weight.grad().clone();
    mesh.shutdown();
  });
  return gradients;
}

TEST(PipelineScale, GradientsOfStepsAddUpToThoseOfTheJoinedBatch) {
  for (const bool tied : {false, true}) {
    const auto expected = summed_gradients(1, 1, tied, 1);
    for (const int replicas : {1, 2}) {
      for (const int steps : {1, 2, 4}) {
        for (const double scale : {1.0, 1024.0}) {
          const auto gradients = summed_gradients(replicas, steps, tied, scale);
          for (size_t stage = 0; stage < 2; ++stage)
            EXPECT_LT((gradients[stage] / scale - expected[stage]).abs().max().item<double>(),
                      1e-12)
                << replicas << " replicas, " << steps << " steps, scale " << scale << ", stage "
                << stage;
        }
      }
    }
  }
}

TEST(PipelineScale, ReducingOnSomeRanksAloneIsRefusedOnAll) {
  const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
    Pipeline pipeline(
        {half_net(group.rank())}, group, {.schedule = one_f_one_b(2, 2), .loss = distance});
    pipeline.step(kX, kY, {.reduce = group.rank() == 1});
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("expected .reduce alike on every rank, got true on 1 of 2"));
}

// An infinity in the gradients of one stage of one replica: every rank leaves out that step, and
// halves its scale; the next one all take.
TEST(PipelineScale, AStepThatOneStageCannotTakeNoneTakes) {
  for (const int bad_rank : {0, 1, 2, 3}) {
    run_ranks(4, [&](ProcessGroup& group) {
      Mesh mesh(group, {{"dp", 2}, {"pp", 2}});
      HalfNet net(wave(4, 0.5).to(at::kFloat), mesh.rank("pp") == 0);
      Pipeline pipeline({net}, mesh.group("pp"), {.schedule = one_f_one_b(2, 2), .loss = distance});
      pipeline.average_over(mesh.group("dp"));
      torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
      Precision precision(at::kCPU, {.type = "fp16", .group = group});
      const at::Tensor x = kX.to(at::kFloat), y = kY.to(at::kFloat);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const at::Tensor before = net->weight.detach().clone();
        pipeline.step(x, y, {.scale = precision.scale_value()});
        if (step == 1 && group.rank() == bad_rank)
          net->weight.mutable_grad()[2][3] = INFINITY;
        precision.unscale(optimizer);
        EXPECT_EQ(precision.step(optimizer), step != 1);
        precision.update();
        EXPECT_EQ(torch::equal(before, net->weight), step == 1);
        EXPECT_EQ(precision.scale_value(), step == 0 ? 65536 : 32768);
        if (step != 1) {
          EXPECT_LT(net->weight.grad().abs().max().item<double>(), 10);  // unscaled
        }
      }
      mesh.shutdown();
    });
  }
}

}  // namespace
}  // namespace muster::testing
