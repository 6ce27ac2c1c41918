// What replicas of a pipeline have beside their stages' parameters: buffers, which all have as the
// first one has them, and tensors trained outside of the stages, which come apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/pipeline/stages.h"
#include "tests/support/ranks.h"
#include "tests/support/seeding.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kMicroBatches = 2;
constexpr int kTrainedSteps = 6;
constexpr const char* kOutside = "pipeline: expected every trained tensor of a backward";

torch::nn::Sequential normed_layers() {
  const std::lock_guard lock(seeding);
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(4, 6),
                               torch::nn::BatchNorm1d(6),
                               torch::nn::Tanh(),
                               torch::nn::Linear(6, 6),
                               torch::nn::BatchNorm1d(6),
                               torch::nn::Linear(6, 2));
}

// A replica's inputs of all steps; the targets are their first two columns.
std::vector<at::Tensor> inputs_of(int replica) {
  const std::lock_guard lock(seeding);
  torch::manual_seed(20 + replica);
  std::vector<at::Tensor> all;
  for (int step = 0; step < kTrainedSteps; ++step)
    all.push_back(torch::randn({8, 4}) + replica);
  return all;
}

at::Tensor target_of(const at::Tensor& input) {
  return input.narrow(1, 0, 2);
}

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

using Values = std::vector<std::pair<std::string, at::Tensor>>;

Values buffers_of(const torch::nn::Module& module) {
  Values found;
  for (const auto& item : module.named_buffers())
    found.emplace_back(item.key(), item.value().clone());
  return found;
}

// The buffers of rank 0 after the same training with DistributedDataParallel, and rank 1's loss in
// evaluation mode.
std::pair<Values, double> trained_with_ddp() {
  std::pair<Values, double> found;
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = normed_layers();
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const auto inputs = inputs_of(group.rank());
    for (const at::Tensor& input : inputs) {
      optimizer.zero_grad();
      const auto parts = input.chunk(kMicroBatches);
      {
        const auto local = model.no_sync();
        (squared_error(model(parts[0]), target_of(parts[0])) / kMicroBatches).backward();
      }
      (squared_error(model(parts[1]), target_of(parts[1])) / kMicroBatches).backward();
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    net->eval();
    const double loss = squared_error(model(inputs[0]), target_of(inputs[0])).item<double>();
    if (group.rank() == 0)
      found.first = buffers_of(*net);
    else
      found.second = loss;
  });
  return found;
}

// A replica of two stages.
struct Replica {
  explicit Replica(ProcessGroup& group, PipelineOptions options = {})
      : mesh(group, {{"dp", 2}, {"pp", 2}}), pipeline(make(std::move(options))) {
    pipeline.average_over(mesh.group("dp"));
  }
  Pipeline make(PipelineOptions options) {
    if (options.schedule.actions.empty())
      options.schedule = one_f_one_b(2, kMicroBatches);
    if (!options.loss)
      options.loss = squared_error;
    options.share_loss = true;
    stage = cut_into_stages(net, cut_at(net->size(), {3}))[mesh.rank("pp")];
    return Pipeline({stage}, mesh.group("pp"), std::move(options));
  }

  torch::nn::Sequential net = normed_layers();
  Mesh mesh;
  torch::nn::Sequential stage = nullptr;
  Pipeline pipeline;
};

using OfReplica = std::function<void(Replica& replica, const at::Tensor& beside)>;

const OfReplica nothing_more = [](Replica&, const at::Tensor&) {
};

// `before_step` comes between the gradients and the optimizer.
void train(Replica& replica, const std::function<void()>& before_step = [] {}) {
  torch::optim::SGD optimizer(replica.pipeline.parameters(), 0.1);
  for (const at::Tensor& input : inputs_of(replica.mesh.rank("dp"))) {
    optimizer.zero_grad();
    replica.pipeline.step(input, target_of(input));
    before_step();
    optimizer.step();
  }
}

TEST(PipelineReplicaBuffers, AreThoseOfDistributedDataParallel) {
  const auto [expected, loss] = trained_with_ddp();
  run_ranks(4, [&, &expected = expected, &loss = loss](ProcessGroup& group) {
    Replica replica(group);
    train(replica);
    for (const auto& [name, value] : buffers_of(*replica.stage)) {
      const auto same =
          std::ranges::find_if(expected, [&](const auto& item) { return item.first == name; });
      ASSERT_NE(same, expected.end()) << name;
      EXPECT_TRUE(value.allclose(same->second, 1e-4, 1e-5)) << name << " of rank " << group.rank();
    }
    const at::Tensor input = inputs_of(1)[0];
    EXPECT_NEAR(replica.pipeline.evaluate(input, target_of(input)).item<double>(), loss, 1e-4);
    replica.mesh.shutdown();
  });
}

TEST(PipelineReplicaBuffers, MayBeEachReplicasOwn) {
  std::vector<Values> found(4);
  run_ranks(4, [&](ProcessGroup& group) {
    Replica replica(group, {.broadcast_buffers = false});
    train(replica);
    found[group.rank()] = buffers_of(*replica.stage);
    replica.mesh.shutdown();
  });
  EXPECT_FALSE(found[0][0].second.allclose(found[2][0].second)) << "ranks 0 and 2 are replicas";
}

// Averages the same stages once more.
void average_again(Replica& replica, PipelineOptions options = {}) {
  options.schedule = one_f_one_b(2, 2);
  options.loss = squared_error;
  Pipeline again({replica.stage}, replica.mesh.group("pp"), std::move(options));
  again.average_over(replica.mesh.group("dp"));
}

// An expanded buffer has fewer places than elements.
TEST(PipelineReplicaBuffers, TheFirstOnesAreTakenAtTheBeginning) {
  run_ranks(4, [](ProcessGroup& group) {
    Replica replica(group);
    const int dp = replica.mesh.rank("dp");
    for (at::Tensor buffer : replica.stage->buffers())
      buffer.fill_(dp);
    replica.stage->register_buffer("expanded", torch::full({2, 1}, dp).expand({2, 3}));
    replica.stage->register_buffer("empty", torch::full({0}, dp));
    average_again(replica);
    for (const at::Tensor& buffer : replica.stage->buffers())
      EXPECT_EQ(buffer.sum().item<double>(), 0);
    replica.mesh.shutdown();
  });
}

constexpr const char* kOtherValues = "pipeline: expected the same values of buffers";

// What the ranks print whose replicas have other positions on purpose.
std::string printed_with_positions(const PipelineOptions& options) {
  ::testing::internal::CaptureStderr();
  run_ranks(4, [&](ProcessGroup& group) {
    Replica replica(group);
    const int dp = replica.mesh.rank("dp");
    const at::Tensor positions = torch::arange(3) + dp;
    replica.stage->register_buffer("positions", positions);
    average_again(replica, options);
    EXPECT_EQ(positions[0].item<int64_t>(), options.broadcast_buffers ? 0 : dp);
    replica.mesh.shutdown();
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(PipelineReplicaBuffers, OtherValuesAreSaidOnce) {
  const std::string printed = printed_with_positions({});
  EXPECT_EQ(times(printed, kOtherValues), 2U) << printed << "\nonce a stage";
  EXPECT_THAT(printed, HasSubstr("got others of 'positions' on rank 2: all take those of rank 0"));
  EXPECT_THAT(printed_with_positions({.broadcast_buffers = false}), Not(HasSubstr(kOtherValues)));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PipelineReplicaBuffers, OtherShapesAreRefusedWithAWayOut) {
  run_ranks(4, [](ProcessGroup& group) {
    Replica replica(group);
    replica.stage->register_buffer("positions", torch::zeros({2 + replica.mesh.rank("dp")}));
    EXPECT_THAT(error_of([&] { average_again(replica); }),
                AllOf(HasSubstr("got buffer 'positions' Float [2] on cpu on rank"),
                      HasSubstr("or set .broadcast_buffers = false")));
    average_again(replica, {.broadcast_buffers = false});
    replica.mesh.shutdown();
  });
}

// Trains the scale of the outputs too, which the loss multiplies them with.
std::string printed_beside_a_scale(const OfReplica& before_step,
                                   const PipelineOptions& options = {}) {
  ::testing::internal::CaptureStderr();
  std::vector<at::Tensor> scales;
  for (int rank = 0; rank < 4; ++rank)
    scales.push_back(torch::ones({1}).requires_grad_());
  run_ranks(4, [&](ProcessGroup& group) {
    const at::Tensor scale = scales[group.rank()];
    torch::optim::SGD optimizer_of_scale({scale}, 0.1);
    PipelineOptions with_scale = options;
    with_scale.loss = [&](const at::Tensor& output, const at::Tensor& target) {
      return torch::mse_loss(output * scale, target);
    };
    Replica replica(group, with_scale);
    train(replica, [&] {
      if (replica.mesh.rank("pp") == 0)
        return;
      before_step(replica, scale);
      optimizer_of_scale.step();
      optimizer_of_scale.zero_grad();
    });
    replica.mesh.shutdown();
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(BesideAPipeline, AScaleThatReplicasTrainApartIsSaidOnce) {
  const PipelineOptions ways[] = {
      {}, {.schedule = zero_bubble(2, kMicroBatches)}, {.recompute = true}};
  for (const PipelineOptions& way : ways) {
    const std::string printed = printed_beside_a_scale(nothing_more, way);
    EXPECT_EQ(times(printed, kOutside), 1U) << printed;
    EXPECT_THAT(printed, HasSubstr("got a tensor of shape [1] outside of all"));
    EXPECT_THAT(printed, HasSubstr("(rank 1)")) << "the last stage's first replica";
  }
}

TEST(BesideAPipeline, OneThatIsAveragedByHandIsNot) {
  const std::string printed = printed_beside_a_scale([](Replica& replica, const at::Tensor& scale) {
    replica.mesh.group("dp").all_reduce(scale.grad(), ReduceOp::avg);
  });
  EXPECT_THAT(printed, Not(HasSubstr(kOutside)));
}

}  // namespace
}  // namespace muster::testing
