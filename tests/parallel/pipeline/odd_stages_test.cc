// Stages that do not train everything: frozen ones, some that look away from their input, or share
// a weight, or write into a batch; and steps whose gradients add up. Each schedule gives the
// gradients of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "muster/base/error.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/tensor/sequence_parallel.h"
#include "muster/parallel/tensor/tensor_parallel.h"
#include "tests/parallel/tensor/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kOddWidth = 6;

at::Tensor odd_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

// A module of one function and its weights.
struct FunctionImpl : torch::nn::Module {
  FunctionImpl(std::function<at::Tensor(const at::Tensor&)> of,
               const std::vector<at::Tensor>& weights)
      : function(std::move(of)) {
    for (size_t i = 0; i < weights.size(); ++i)
      register_parameter(std::to_string(i), weights[i], weights[i].requires_grad());
  }
  at::Tensor forward(const at::Tensor& x) { return function(x); }
  std::function<at::Tensor(const at::Tensor&)> function;
};
using Function = std::shared_ptr<FunctionImpl>;

Function function_stage(std::function<at::Tensor(const at::Tensor&)> of,
                        const std::vector<at::Tensor>& weights) {
  return std::make_shared<FunctionImpl>(std::move(of), weights);
}

at::Tensor odd_weight(uint64_t seed, bool trained = true) {
  return tensor_numbers({kOddWidth, kOddWidth}, seed).requires_grad_(trained);
}

// Two stages; made anew for each run.
using Halves = std::function<std::vector<Function>()>;

std::vector<at::Tensor> gradients_of(const std::vector<Function>& stages) {
  std::vector<at::Tensor> gradients;
  for (const Function& stage : stages)
    for (const at::Tensor& weight : stage->parameters())
      gradients.push_back(weight.grad());
  return gradients;
}

const at::Tensor kOddX = tensor_numbers({8, kOddWidth}, 1),
                 kOddY = tensor_numbers({8, kOddWidth}, 2);

std::vector<at::Tensor> one_process(const Halves& make) {
  const auto stages = make();
  odd_loss(stages[1]->forward(stages[0]->forward(kOddX.clone())), kOddY).backward();
  return gradients_of(stages);
}

std::vector<at::Tensor> two_ranks(const Halves& make,
                                  const PipelineSchedule& schedule,
                                  bool recompute) {
  const auto stages = make();
  const at::Tensor x = kOddX.clone();
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Pipeline pipeline({stages[static_cast<size_t>(group.rank())]},
                      group,
                      {.schedule = schedule, .loss = odd_loss, .recompute = recompute});
    pipeline.step(x, kOddY);
  });
  return gradients_of(stages);
}

void expect_one_process_gradients(const Halves& make) {
  const auto expected = one_process(make);
  for (const auto& schedule : {gpipe(2, 4), one_f_one_b(2, 4), zero_bubble(2, 4)}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(schedule.name + (recompute ? ", recomputed" : ""));
      const auto found = two_ranks(make, schedule, recompute);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        // Of a weight that no loss depends on, zeros are as good as none.
        const at::Tensor wanted = expected[i].defined() ? expected[i] : torch::zeros_like(kOddX[0]);
        const at::Tensor got = found[i].defined() ? found[i] : torch::zeros_like(wanted);
        EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-12) << i;
      }
    }
  }
}

TEST(PipelineOddStages, AFrozenFirstStageTrainsNothing) {
  expect_one_process_gradients([] {
    const auto a = odd_weight(3, /*trained=*/false), b = odd_weight(4);
    return std::vector{function_stage([a](const at::Tensor& x) { return x.matmul(a).tanh(); }, {a}),
                       function_stage([b](const at::Tensor& x) { return x.matmul(b); }, {b})};
  });
}

TEST(PipelineOddStages, AStageMayLookAwayFromItsInput) {
  expect_one_process_gradients([] {
    const auto a = odd_weight(3), b = odd_weight(4);
    return std::vector{
        function_stage([a](const at::Tensor& x) { return x.matmul(a).tanh(); }, {a}),
        function_stage([b](const at::Tensor& x) { return x.detach().matmul(b).tanh(); }, {b})};
  });
}

TEST(PipelineOddStages, TheFirstLayerMayWriteIntoTheBatch) {
  expect_one_process_gradients([] {
    const auto a = odd_weight(3), b = odd_weight(4);
    return std::vector{function_stage(
                           [a](const at::Tensor& x) {
                             at::Tensor scaled = x;
                             return scaled.mul_(0.5).matmul(a).tanh();
                           },
                           {a}),
                       function_stage([b](const at::Tensor& x) { return x.matmul(b); }, {b})};
  });
}

TEST(PipelineOddStages, AStageMayBeginInPlace) {
  expect_one_process_gradients([] {
    const auto a = odd_weight(3), b = odd_weight(4);
    return std::vector{function_stage([a](const at::Tensor& x) { return x.matmul(a); }, {a}),
                       function_stage(
                           [b](const at::Tensor& x) {
                             at::Tensor rectified = x;
                             return rectified.relu_().matmul(b);
                           },
                           {b})};
  });
}

TEST(PipelineOddStages, AStageOfTheSameRankMayBeginInPlace) {
  const auto weights = [] {
    return std::vector{odd_weight(3), odd_weight(4)};
  };
  const auto whole = weights();
  odd_loss(torch::relu(kOddX.matmul(whole[0])).matmul(whole[1]), kOddY).backward();
  const auto mine = weights();
  run_ranks(1, [&](ProcessGroup& group) {
    const auto in_place = [&](const at::Tensor& x) {
      at::Tensor rectified = x;
      return rectified.relu_().matmul(mine[1]);
    };
    Pipeline pipeline(
        {function_stage([&](const at::Tensor& x) { return x.matmul(mine[0]); }, {mine[0]}),
         function_stage(in_place, {mine[1]})},
        group,
        {.schedule = interleaved(1, 2, 2), .loss = odd_loss});
    pipeline.step(kOddX, kOddY);
  });
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_LT(tensor_difference(mine[i].grad(), whole[i].grad()), 1e-12);
}

TEST(PipelineOddStages, AStageThatDependsOnNothingIsRefused) {
  const auto a = odd_weight(3);
  const std::vector stages{function_stage([a](const at::Tensor& x) { return x.matmul(a); }, {a}),
                           function_stage([](const at::Tensor& x) { return x.detach() * 2; }, {})};
  for (const auto& schedule : {one_f_one_b(2, 4), zero_bubble(2, 4)}) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      Pipeline pipeline({stages[static_cast<size_t>(group.rank())]},
                        group,
                        {.schedule = schedule, .loss = odd_loss});
      pipeline.step(kOddX, kOddY);
    });
    EXPECT_THAT(message_of(failures[1]), HasSubstr("got one that depends on neither"))
        << schedule.name;
  }
}

// As one process's, where nothing takes the gradients away in between.
TEST(PipelineOddStages, GradientsOfTiedWeightsAddUpOverSteps) {
  const auto tied_weights = [] {
    return std::vector{odd_weight(3), odd_weight(3)};
  };
  const at::Tensor whole = odd_weight(3);
  for (int step = 0; step < 3; ++step)
    odd_loss(kOddX.matmul(whole).tanh().matmul(whole), kOddY).backward();
  const auto copies = tied_weights();
  const at::Tensor frozen = odd_weight(5, /*trained=*/false);
  run_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor mine = copies[static_cast<size_t>(group.rank())];
    const auto of = [=](const at::Tensor& x) {
      return group.rank() == 0 ? x.matmul(mine).tanh() : x.matmul(mine);
    };
    Pipeline pipeline(
        {function_stage(of, {mine})}, group, {.schedule = one_f_one_b(2, 4), .loss = odd_loss});
    pipeline.tie(mine);
    pipeline.tie(group.rank() == 0 ? frozen : frozen.clone());
    for (int step = 0; step < 3; ++step)
      pipeline.step(kOddX, kOddY);
  });
  for (const at::Tensor& copy : copies)
    EXPECT_LT(tensor_difference(copy.grad(), whole.grad()), 1e-12);
  EXPECT_FALSE(frozen.grad().defined());
}

// Two stages of each rank have one weight in common; over two replicas.
TEST(PipelineOddStages, ReplicasAverageAWeightThatTwoStagesOfARankHave) {
  const at::Tensor whole = odd_weight(3);
  odd_loss(kOddX.matmul(whole).tanh().matmul(whole), kOddY).backward();
  std::vector<at::Tensor> weights{odd_weight(3), odd_weight(3)};
  run_ranks(2, [&](ProcessGroup& group) {
    Mesh mesh(group, {{"dp", 2}, {"pp", 1}});
    const at::Tensor mine = weights[static_cast<size_t>(group.rank())];
    Pipeline pipeline(
        {function_stage([=](const at::Tensor& x) { return x.matmul(mine).tanh(); }, {mine}),
         function_stage([=](const at::Tensor& x) { return x.matmul(mine); }, {mine})},
        mesh.group("pp"),
        {.schedule = interleaved(1, 2, 2), .loss = odd_loss});
    pipeline.average_over(mesh.group("dp"));
    EXPECT_THROW(pipeline.average_over(mesh.group("dp")), Error);
    const auto half = [&](const at::Tensor& t) {
      return t.chunk(2)[static_cast<size_t>(mesh.rank("dp"))];
    };
    pipeline.step(half(kOddX), half(kOddY));
    mesh.shutdown();
  });
  for (const at::Tensor& weight : weights)
    EXPECT_LT(tensor_difference(weight.grad(), whole.grad()), 1e-12);
}

TEST(PipelineOddStages, ARefusedEvaluationLeavesTrainingAsItIs) {
  const auto stages = std::vector{odd_weight(3), odd_weight(4)};
  run_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor mine = stages[static_cast<size_t>(group.rank())];
    Pipeline pipeline({function_stage([=](const at::Tensor& x) { return x.matmul(mine); }, {mine})},
                      group,
                      {.schedule = one_f_one_b(2, 4), .loss = odd_loss});
    pipeline.step(kOddX, kOddY);
    const auto fewer = [](const at::Tensor& t) {
      return t.narrow(0, 0, 4);
    };
    pipeline.evaluate(fewer(kOddX), fewer(kOddY));
    EXPECT_THROW(pipeline.evaluate(kOddX, kOddY), Error);
    pipeline.step(kOddX, kOddY);
  });
}

// The mean of halves is not itself a half's sum.
TEST(PipelineOddStages, TheLossOfHalvesIsSummedInFloat) {
  const auto stages = std::vector{odd_weight(3), odd_weight(4)};
  run_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor mine = stages[static_cast<size_t>(group.rank())];
    Pipeline pipeline(
        {function_stage([=](const at::Tensor& x) { return x.matmul(mine); }, {mine})},
        group,
        {.schedule = one_f_one_b(2, 4), .loss = [](const at::Tensor& y, const at::Tensor& target) {
           return odd_loss(y, target).to(at::kBFloat16);
         }});
    const at::Tensor loss = pipeline.step(kOddX, kOddY);
    if (group.rank() == 1) {
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
    }
    EXPECT_TRUE(mine.grad().defined());
  });
}

// Norms whose backward is an all_reduce, in W: its order must be that of the graph on every rank.
TEST(PipelineOddStages, ZeroBubbleTakesStagesOfDividedTokens) {
  const auto run = [](const PipelineSchedule& schedule) {
    std::vector<at::Tensor> sums(4);
    run_ranks(4, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      Mesh mesh(group, {{"pp", 2}, {"tp", 2}});
      ProcessGroup tp = mesh.group("tp");
      struct BlockImpl : torch::nn::Module {
        BlockImpl(const ProcessGroup& group, uint64_t seed)
            : tp(group),
              up(column_parallel(tensor_linear(kOddWidth, 8, seed), tp, {.sequence_dim = 1})),
              down(row_parallel(tensor_linear(8, kOddWidth, seed + 2), tp, {.sequence_dim = 1})) {
          for (int i = 0; i < 3; ++i) {
            norms.emplace_back(torch::nn::LayerNormOptions({kOddWidth}));
            norms.back()->to(at::kDouble);
            register_module("norm" + std::to_string(i), norms.back());
          }
          register_module("up", up);
          register_module("down", down);
        }
        at::Tensor forward(const at::Tensor& x) {
          const auto y =
              sequence_layer_norm(norms[1], sequence_layer_norm(norms[0], x, tp) * 2, tp);
          return x + sequence_layer_norm(norms[2], down(torch::tanh(up(y))), tp);
        }
        ProcessGroup tp;
        std::vector<torch::nn::LayerNorm> norms;
        ColumnParallelLinear up;
        RowParallelLinear down;
      };
      auto block = std::make_shared<BlockImpl>(tp, 10 + static_cast<uint64_t>(mesh.rank("pp")));
      Pipeline pipeline({block}, mesh.group("pp"), {.schedule = schedule, .loss = odd_loss});
      const at::Tensor x =
          tensor_numbers({8, 4, kOddWidth}, 5).chunk(2, 1)[static_cast<size_t>(mesh.rank("tp"))];
      for (int step = 0; step < 10; ++step)
        pipeline.step(x, x * 3);
      std::vector<at::Tensor> all;
      for (const at::Tensor& parameter : pipeline.parameters())
        all.push_back(parameter.grad().flatten());
      sums[static_cast<size_t>(group.rank())] = torch::cat(all);
      mesh.shutdown();
    });
    return sums;
  };
  const auto expected = run(one_f_one_b(2, 4)), found = run(zero_bubble(2, 4));
  for (size_t rank = 0; rank < found.size(); ++rank)
    EXPECT_LT(tensor_difference(found[rank], expected[rank]), 1e-12) << rank;
}

// Of one rank, as the generator is the process's.
TEST(PipelineOddStages, RecomputationDrawsASequencesMasksAgain) {
  const auto gradient = [](bool recompute) {
    const at::Tensor weight = odd_weight(3);
    run_ranks(1, [&](ProcessGroup& group) {
      torch::manual_seed(8);
      SequenceDropout dropout(0.5, group);
      auto stage = function_stage(
          [=](const at::Tensor& x) mutable { return dropout(x.matmul(weight)); }, {weight});
      Pipeline pipeline(
          {stage}, group, {.schedule = gpipe(1, 4), .loss = odd_loss, .recompute = recompute});
      pipeline.step(kOddX, kOddY);
    });
    return weight.grad();
  };
  EXPECT_TRUE(gradient(true).equal(gradient(false)));
}

}  // namespace
}  // namespace muster::testing
