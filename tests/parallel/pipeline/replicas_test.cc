// Replicas of a pipeline train as one process does whatever is frozen, unfrozen or not used; and
// what would train something else is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/comm/job_ranks.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/pipeline/stages.h"
#include "muster/parallel/tensor/tensor_parallel.h"
#include "muster/train/clip.h"
#include "muster/train/precision.h"
#include "tests/support/ranks.h"
#include "tests/support/seeding.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Uses one of its two layers.
struct EitherImpl : torch::nn::Module {
  EitherImpl() {
    register_module("one", one);
    register_module("other", other);
  }
  at::Tensor forward(const at::Tensor& x) { return uses_other ? other(x) : one(x); }
  torch::nn::Linear one{6, 6}, other{6, 6};
  bool uses_other = false;
};
TORCH_MODULE(Either);

torch::nn::Sequential six_layers() {
  const std::lock_guard lock(seeding);
  torch::manual_seed(6);
  return torch::nn::Sequential(torch::nn::Linear(4, 6),
                               torch::nn::Tanh(),
                               Either(),
                               Either(),
                               torch::nn::Tanh(),
                               torch::nn::Linear(6, 2));
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

std::vector<at::Tensor> inputs_of_steps(int count) {
  const std::lock_guard lock(seeding);
  torch::manual_seed(8);
  std::vector<at::Tensor> all;
  for (int i = 0; i < count; ++i)
    all.push_back(torch::randn({12, 4}));
  return all;
}

void train_layer(torch::nn::Sequential& net, size_t layer, bool trains) {
  for (at::Tensor& parameter : net->ptr(layer)->parameters())
    parameter.requires_grad_(trains);
}

torch::optim::SGD optimizer_of(const std::vector<at::Tensor>& parameters) {
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
  return torch::optim::SGD(parameters, options);
}

// What happens to the net before a step.
using Before = std::function<void(torch::nn::Sequential& net, int step)>;

constexpr int kSteps = 8;

WholeParameters trained_alone(const Before& before) {
  auto net = six_layers();
  before(net, -1);
  auto optimizer = optimizer_of(net->parameters());
  const auto inputs = inputs_of_steps(kSteps);
  for (int step = 0; step < kSteps; ++step) {
    before(net, step);
    optimizer.zero_grad();
    mean_square(net->forward(inputs[step]), inputs[step].narrow(1, 0, 2)).backward();
    optimizer.step();
  }
  WholeParameters all;
  for (const auto& item : net->named_parameters())
    all.emplace(item.key(), item.value().detach());
  return all;
}

// Two replicas of two stages.
void expect_trained_alike(const Before& before, const PipelineSchedule& schedule) {
  at::set_num_threads(1);
  const WholeParameters expected = trained_alone(before);
  std::vector<torch::nn::Sequential> nets;
  for (int rank = 0; rank < 4; ++rank)
    nets.push_back(six_layers());
  const auto inputs = inputs_of_steps(kSteps);
  run_ranks(4, [&](ProcessGroup& group) {
    Mesh mesh(group, {{"dp", 2}, {"pp", 2}});
    auto& net = nets[group.rank()];
    before(net, -1);
    auto stages = cut_into_stages(net, cut_at(net->size(), {3}));
    Pipeline pipeline(
        {stages[mesh.rank("pp")]}, mesh.group("pp"), {.schedule = schedule, .loss = mean_square});
    pipeline.average_over(mesh.group("dp"));
    auto optimizer = optimizer_of(pipeline.parameters());
    for (int step = 0; step < kSteps; ++step) {
      before(net, step);
      const auto mine = inputs[step].chunk(2)[mesh.rank("dp")];
      optimizer.zero_grad();
      pipeline.step(mine, mine.narrow(1, 0, 2));
      optimizer.step();
    }
    for (const auto& [name, parameter] : pipeline.gather_parameters())
      EXPECT_TRUE(parameter.allclose(expected.at(name), 1e-5, 1e-6)) << name;
    mesh.shutdown();
  });
}

TEST(PipelineReplicas, FollowWhatIsFrozenAndUnfrozen) {
  const Before before = [](torch::nn::Sequential& net, int step) {
    if (step == -1)
      train_layer(net, 5, false);
    if (step == 2)
      train_layer(net, 0, false);
    if (step == 4)
      train_layer(net, 5, true);
    if (step == 6)
      train_layer(net, 0, true);
  };
  expect_trained_alike(before, one_f_one_b(2, 3));
  expect_trained_alike(before, zero_bubble(2, 3));
}

// As one process, an optimizer with a decay or a momentum leaves it alone.
TEST(PipelineReplicas, LeaveWhatNoneUsesWithoutAGradient) {
  expect_trained_alike(
      [](torch::nn::Sequential& net, int step) {
        for (const size_t layer : {2, 3})
          std::dynamic_pointer_cast<EitherImpl>(net->ptr(layer))->uses_other = step >= 3;
      },
      one_f_one_b(2, 3));
}

TEST(PipelineReplicas, RefuseParametersThatDiffer) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = six_layers();
    Mesh mesh(group, {{"dp", 2}, {"pp", 1}});
    Pipeline pipeline({net}, mesh.group("pp"), {.schedule = gpipe(1, 2), .loss = mean_square});
    pipeline.average_over(mesh.group("dp"));
    train_layer(net, 0, group.rank() == 0);
    const at::Tensor x = torch::ones({4, 4});
    try {
      pipeline.step(x, x.narrow(1, 0, 2));
      FAIL() << "it should throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("'0.weight' Float [6, 4], trained on rank 0 and"));
    }
    try {
      pipeline.step(x, x.narrow(1, 0, 2));
      FAIL() << "it should throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("no step after one that failed"));
    }
    mesh.shutdown();
  });
}

TEST(PipelineReplicas, RefuseSparseGradients) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
    Mesh mesh(group, {{"dp", 2}, {"pp", 1}});
    Pipeline pipeline({net}, mesh.group("pp"), {.schedule = gpipe(1, 2), .loss = mean_square});
    pipeline.average_over(mesh.group("dp"));
    try {
      pipeline.step(torch::arange(4), torch::ones({4, 2}));
      FAIL() << "it should throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("expected dense gradients"));
    }
    mesh.shutdown();
  });
}

// Rank 0's part of the layer would replace the other.
TEST(PipelineReplicas, RefuseRanksWithOtherPartsOfALayer) {
  torch::nn::Linear whole(4, 4);
  run_ranks(2, [&](ProcessGroup& group) {
    auto divided = column_parallel(whole, group);
    const at::Tensor before = divided->weight.clone();
    Mesh mesh(group, {{"dp", 2}, {"pp", 1}});
    Pipeline pipeline({divided}, mesh.group("pp"), {.schedule = gpipe(1, 2), .loss = mean_square});
    try {
      pipeline.average_over(mesh.group("dp"));
      FAIL() << "it should throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("other parts of one of [2, 4] on ranks 0 and 1"));
    }
    EXPECT_TRUE(divided->weight.equal(before));
    mesh.shutdown();
  });
}

// What two replicas of two stages print, of which each takes its batches by `part_of` and steps
// with its `rate`.
std::string printed_by_replicas(const std::function<int(int replica)>& part_of,
                                const std::function<double(int replica)>& rate) {
  ::testing::internal::CaptureStderr();
  const auto inputs = inputs_of_steps(kSteps);
  run_ranks(4, [&](ProcessGroup& group) {
    Mesh mesh(group, {{"dp", 2}, {"pp", 2}});
    auto stages = cut_into_stages(six_layers(), cut_at(6, {3}));
    Pipeline pipeline({stages[mesh.rank("pp")]},
                      mesh.group("pp"),
                      {.schedule = gpipe(2, 2), .loss = mean_square});
    pipeline.average_over(mesh.group("dp"));
    torch::optim::SGD optimizer(pipeline.parameters(), rate(mesh.rank("dp")));
    for (const at::Tensor& input : inputs) {
      const auto mine = input.chunk(2)[part_of(mesh.rank("dp"))];
      optimizer.zero_grad();
      pipeline.step(mine, mine.narrow(1, 0, 2));
      optimizer.step();
    }
    mesh.shutdown();
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(PipelineReplicas, AreWarnedOfTheSameSamplesAndOfOtherSteps) {
  const auto own = [](int replica) {
    return replica;
  };
  const auto one_rate = [](int) {
    return 0.1;
  };
  EXPECT_EQ(printed_by_replicas(own, one_rate), "");
  const std::string same = printed_by_replicas([](int) { return 0; }, one_rate);
  EXPECT_EQ(times(same, "got the same gradients on ranks 0 and 2 in the first 3 steps"), 1U)
      << same;
  EXPECT_THAT(same, Not(HasSubstr("equal weights")));
  const std::string apart =
      printed_by_replicas(own, [](int replica) { return 0.1 / (1 + replica); });
  EXPECT_EQ(times(apart, "expected equal weights in every replica, got others on rank 2"), 1U)
      << apart;
  EXPECT_THAT(apart, Not(HasSubstr("same gradients")));
}

TEST(PipelineReplicas, AWarningTellsOfReplicasThatNobodyAverages) {
  ::testing::internal::CaptureStderr();
  set_job_ranks(2);
  run_ranks(1, [](ProcessGroup& group) {
    auto net = six_layers();
    Pipeline pipeline({net}, group, {.schedule = gpipe(1, 2), .loss = mean_square});
    for (int step = 0; step < 2; ++step)
      pipeline.step(torch::ones({4, 4}), torch::ones({4, 2}));
  });
  set_job_ranks(1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("expected average_over for the replicas"));
  EXPECT_EQ(said.find("average_over for"), said.rfind("average_over for"));
}

// The first rank, which warns, has a whole stage.
TEST(PipelineReplicas, RanksThatDivideALaterStageAreNone) {
  ::testing::internal::CaptureStderr();
  set_job_ranks(4);
  run_ranks(4, [](ProcessGroup& group) {
    Mesh mesh(group, {{"pp", 2}, {"tp", 2}});
    ProcessGroup stages = mesh.group("pp"), divided_over = mesh.group("tp");
    const auto run_stage = [&](const PipelineStage& stage) {
      Pipeline pipeline({stage}, stages, {.schedule = gpipe(2, 2), .loss = mean_square});
      pipeline.step(torch::ones({4, 4}), torch::ones({4, 1}));
    };
    torch::nn::Linear front(4, 6), back(6, 2);
    for (const at::Tensor& parameter : {front->weight, front->bias, back->weight, back->bias})
      torch::nn::init::constant_(parameter, 0.1);
    if (stages.rank() == 0)
      run_stage(front);
    else
      run_stage(column_parallel(back, divided_over));
    mesh.shutdown();
  });
  set_job_ranks(1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("expected average_over")));
}

// Dropout and running statistics are those of an evaluation, as with muster::evaluate.
TEST(PipelineEvaluation, IsInEvaluationMode) {
  const at::Tensor x = torch::randn({8, 4}), target = x.narrow(1, 0, 2);
  torch::nn::Linear front(4, 6), back(6, 2);
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::BatchNorm1d norm(6);
    torch::nn::Dropout dropout(0.5), still(0.5);
    torch::nn::Sequential net(front, dropout, norm, still, back);
    still->eval();
    auto stages = cut_into_stages(net, cut_at(net->size(), {2}));
    Pipeline pipeline({stages[group.rank()]},
                      group,
                      {.schedule = one_f_one_b(2, 2), .loss = mean_square, .share_loss = true});
    const double found = pipeline.evaluate(x, target).item<double>();
    EXPECT_TRUE(dropout->is_training());
    EXPECT_TRUE(norm->is_training());
    EXPECT_FALSE(still->is_training());
    EXPECT_EQ(norm->running_mean.abs().sum().item<double>(), 0);
    net->eval();
    const torch::NoGradGuard no_grad;
    EXPECT_NEAR(found, mean_square(net->forward(x), target).item<double>(), 1e-6);
  });
}

TEST(PipelineEvaluation, AModuleOfTwoStagesHasItsModeBack) {
  run_ranks(1, [](ProcessGroup& group) {
    torch::nn::Dropout shared(0.5);
    torch::nn::Sequential first(torch::nn::Linear(4, 6), shared),
        second(shared, torch::nn::Linear(6, 2));
    Pipeline pipeline(
        {first, second}, group, {.schedule = interleaved(1, 2, 2), .loss = mean_square});
    pipeline.evaluate(torch::ones({4, 4}), torch::ones({4, 2}));
    EXPECT_TRUE(shared->is_training());
  });
}

// Each rank would clip its stage by the stage's own norm, and skip its own steps.
TEST(PipelineClipping, BySomeStagesAloneIsRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = six_layers();
    auto stages = cut_into_stages(net, cut_at(net->size(), {3}));
    const auto mine = stages[group.rank()]->parameters();
    {
      Pipeline pipeline(
          {stages[group.rank()]}, group, {.schedule = one_f_one_b(2, 2), .loss = mean_square});
      const at::Tensor x = torch::ones({4, 4});
      pipeline.step(x, x.narrow(1, 0, 2));
      EXPECT_GT(grad_norm(pipeline.parameters()).item<double>(), 0);
      try {
        clip_grad_norm(pipeline.parameters(), 1);
        FAIL() << "it should throw";
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr("use pipeline.clip_grad_norm"));
      }
      Precision half(at::kCPU, "fp16");
      half.scale(torch::ones({1}));
      EXPECT_THROW(half.unscale(pipeline.parameters()), Error);
      pipeline.clip_grad_norm(1);
    }
    EXPECT_NO_THROW(clip_grad_norm(mine, 1));
  });
}

TEST(PipelineClipping, SparseGradientsCount) {
  run_ranks(1, [](ProcessGroup& group) {
    const at::Tensor numbers = torch::rand({5, 2}), tokens = torch::tensor({0, 3, 3, 1});
    const auto clipped = [&](bool sparse) {
      auto net = torch::nn::Embedding::from_pretrained(
          numbers.clone(),
          torch::nn::EmbeddingFromPretrainedOptions().freeze(false).sparse(sparse));
      Pipeline pipeline({net}, group, {.schedule = gpipe(1, 2), .loss = mean_square});
      pipeline.step(tokens, torch::zeros({4, 2}));
      const at::Tensor norm = pipeline.clip_grad_norm(0.01);
      return std::pair(norm, net->weight.grad().to_dense());
    };
    const auto [norm, gradient] = clipped(true);
    const auto [dense_norm, dense_gradient] = clipped(false);
    EXPECT_TRUE(norm.allclose(dense_norm));
    EXPECT_TRUE(gradient.allclose(dense_gradient));
  });
}

TEST(PipelineTiedWeights, AreFrozenOnAllRanksOrNone) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear mine(torch::nn::LinearOptions(4, 4).bias(false));
    Pipeline pipeline({mine}, group, {.schedule = one_f_one_b(2, 2), .loss = mean_square});
    pipeline.tie(mine->weight);
    const at::Tensor x = torch::ones({4, 4});
    mine->weight.requires_grad_(group.rank() == 1);
    try {
      pipeline.step(x, x);
      FAIL() << "it should throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("got 'weight' frozen on some in step 0"));
    }
    mine->weight.requires_grad_(true);
    pipeline.step(x, x);  // nothing was begun
  });
}

// Has a layer that a program may replace.
struct ReplaceableImpl : torch::nn::Module {
  explicit ReplaceableImpl(double value) { replace(value); }
  void replace(double value) {
    layer = torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false));
    const torch::NoGradGuard no_grad;
    layer->weight.fill_(value);
    named_children().contains("layer") ? replace_module("layer", layer)
                                       : register_module("layer", layer);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Replaceable);

TEST(PipelineTiedWeights, StayTiedWhereAllRanksReplaceThem) {
  run_ranks(2, [](ProcessGroup& group) {
    Replaceable mine(0.5);
    Pipeline pipeline({mine}, group, {.schedule = one_f_one_b(2, 2), .loss = mean_square});
    pipeline.tie(mine->layer->weight);
    const at::Tensor x = torch::ones({4, 4});
    pipeline.step(x, x);
    if (group.rank() == 1)
      mine->replace(0.3);
    try {
      pipeline.step(x, x);
      FAIL() << "it should throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("got 'layer.weight' replaced on some in step 1"));
    }
    if (group.rank() == 0)
      mine->replace(0.2);
    pipeline.step(x, x);  // nothing was begun
    const at::Tensor& weight = mine->layer->weight;
    EXPECT_TRUE(weight.equal(torch::full({4, 4}, 0.2))) << weight;
    at::Tensor of_first = weight.grad().clone();
    group.broadcast(of_first, 0);
    EXPECT_TRUE(of_first.equal(weight.grad()));
    EXPECT_GT(weight.grad().abs().max().item<float>(), 0);
  });
}

TEST(PipelineTiedWeights, RefuseSparseGradients) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Embedding words(torch::nn::EmbeddingOptions(4, 4).sparse(true));
    torch::nn::Linear head(torch::nn::LinearOptions(4, 4).bias(false));
    const bool is_first = group.rank() == 0;
    Pipeline pipeline({is_first ? PipelineStage(words) : PipelineStage(head)},
                      group,
                      {.schedule = one_f_one_b(2, 2), .loss = mean_square});
    pipeline.tie(is_first ? words->weight : head->weight);
    try {
      pipeline.step(torch::tensor({0, 3, 3, 1}), torch::zeros({4, 4}));
      FAIL() << "it should throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("expected dense gradients of a tied weight"));
      EXPECT_THAT(error.message(), HasSubstr("without .sparse(true)"));
    }
  });
}

}  // namespace
}  // namespace muster::testing
