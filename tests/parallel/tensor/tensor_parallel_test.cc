// Layers divided over ranks against the whole layers in this process.
#include "muster/parallel/tensor/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/data/dataset.h"
#include "muster/data/distributed_sampler.h"
#include "muster/data/loader.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/tensor/parallel_parameters.h"
#include "muster/parallel/tensor/sequence_parallel.h"
#include "muster/parallel/tensor/vocabulary_parallel.h"
#include "muster/train/clip.h"
#include "muster/train/step.h"
#include "tests/parallel/tensor/models.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

class TensorParallelTest : public ::testing::TestWithParam<TensorCase> {
 protected:
  void run(const std::function<void(ProcessGroup&)>& body) const {
    at::set_num_threads(1);
    run_ranks(GetParam().ranks, body, {.backend = GetParam().backend});
  }
};
INSTANTIATE_TEST_SUITE_P(Groups,
                         TensorParallelTest,
                         ::testing::Values(TensorCase{"shm", 1},
                                           TensorCase{"shm", 2},
                                           TensorCase{"shm", 4},
                                           TensorCase{"gloo", 2}),
                         [](const auto& info) { return name_of_case(info.param); });

TEST_P(TensorParallelTest, FunctionsAndTheirConjugates) {
  run([](ProcessGroup& group) {
    const int64_t n = group.size(), rank = group.rank();
    const at::Tensor whole = tensor_numbers({2, 4 * n}, 1);
    const at::Tensor weights = tensor_numbers({2, 4 * n}, 2);
    const auto mine = [&](const at::Tensor& x) {
      return x.narrow(1, 4 * rank, 4);
    };

    // Every rank's loss is the same number, so the gradient is that of this number.
    at::Tensor x = whole.clone().requires_grad_();
    at::Tensor y = gather_from_group(scatter_to_group(x, group, 1), group, -1);
    EXPECT_TRUE(y.equal(whole));
    (y * weights).sum().backward();
    EXPECT_TRUE(x.grad().equal(weights));

    at::Tensor z = whole.clone().requires_grad_();
    at::Tensor part = mine(copy_to_group(z, group)) * mine(weights);
    at::Tensor loss = reduce_from_group(part.sum(), group);
    EXPECT_LT(std::abs((whole * weights).sum().item<double>() - loss.item<double>()), 1e-12);
    loss.backward();
    EXPECT_TRUE(z.grad().equal(weights));
  });
}

TEST_P(TensorParallelTest, DerivativesCanBeDifferentiatedAgain) {
  run([](ProcessGroup& group) {
    const int64_t n = group.size();
    const at::Tensor x = tensor_numbers({4 * n}, 1).requires_grad_();
    const auto cubes = [&](const at::Tensor& all) {
      return (all * all * all).sum();
    };
    const at::Tensor loss = reduce_from_group(cubes(scatter_to_group(x, group, 0)), group);
    const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
    const at::Tensor second = torch::autograd::grad({first.sum()}, {x})[0];
    EXPECT_LT(tensor_difference(first, 3 * x * x), 1e-12);
    EXPECT_LT(tensor_difference(second, 6 * x), 1e-12);
  });
}

struct TensorMlp {
  torch::nn::Linear up, down;
  explicit TensorMlp(at::ScalarType type)
      : up(tensor_linear(6, 8, 1, type)), down(tensor_linear(8, 3, 3, type)) {}
};

std::vector<double> tensor_train(const std::function<at::Tensor(const at::Tensor&)>& model,
                                 const std::vector<at::Tensor>& parameters,
                                 at::ScalarType type) {
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
  std::vector<double> losses;
  for (uint64_t step = 0; step < 25; ++step) {
    const at::Tensor x = tensor_numbers({16, 6}, 100 + step, type);
    const at::Tensor target = (x.sum(1) > 0).to(at::kLong) + (x.select(1, 0) > 0).to(at::kLong);
    optimizer.zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(model(x), target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

double worst_difference_of_losses(ProcessGroup& group, at::ScalarType type) {
  TensorMlp whole(type);
  ColumnParallelLinear up = column_parallel(whole.up, group);
  RowParallelLinear down = row_parallel(whole.down, group);
  std::vector<at::Tensor> parameters = up->parameters();
  for (const at::Tensor& parameter : down->parameters())
    parameters.push_back(parameter);
  const auto ours =
      tensor_train([&](const at::Tensor& x) { return down(torch::gelu(up(x))); }, parameters, type);
  std::vector<at::Tensor> all = whole.up->parameters();
  for (const at::Tensor& parameter : whole.down->parameters())
    all.push_back(parameter);
  const auto single = tensor_train(
      [&](const at::Tensor& x) { return whole.down->forward(torch::gelu(whole.up->forward(x))); },
      all,
      type);
  EXPECT_LT(single.back(), 0.8 * single.front());  // it learns: the comparison is of something
  EXPECT_LT(tensor_difference(up->gather_parameters().at("weight"), whole.up->weight), 1e-3);
  EXPECT_LT(tensor_difference(down->gather_parameters().at("weight"), whole.down->weight), 1e-3);
  EXPECT_LT(tensor_difference(down->gather_parameters().at("bias"), whole.down->bias), 1e-3);
  return worst_difference(ours, single);
}

TEST_P(TensorParallelTest, AnMlpHasTheSingleProcessLosses) {
  run([](ProcessGroup& group) {
    const double in_double = worst_difference_of_losses(group, at::kDouble);
    const double in_float = worst_difference_of_losses(group, at::kFloat);
    EXPECT_LT(in_double, 1e-12);
    EXPECT_LT(in_float, 1e-5);
    if (group.rank() == 0)
      std::printf("losses differ by %.1e double, %.1e float\n", in_double, in_float);
  });
}

// The same MLP on tokens divided outside of it.
TEST_P(TensorParallelTest, ASequenceMayBeDividedOutside) {
  run([](ProcessGroup& group) {
    const int64_t length = 3 * group.size();
    TensorMlp whole(at::kDouble);
    ColumnParallelLinear up = column_parallel(whole.up, group, {.sequence_dim = 1});
    RowParallelLinear down = row_parallel(whole.down, group, {.sequence_dim = 1});
    torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({6}));
    norm->to(at::kDouble);
    torch::nn::LayerNorm same(torch::nn::LayerNormOptions({6}));
    same->to(at::kDouble);
    const at::Tensor x = tensor_numbers({2, length, 6}, 5).requires_grad_();
    const at::Tensor y = x.detach().clone().requires_grad_();
    const at::Tensor weights = tensor_numbers({2, length, 3}, 6);

    const at::Tensor own = scatter_to_group(x, group, 1);
    const at::Tensor out = down(torch::gelu(up(sequence_layer_norm(norm, own, group))));
    EXPECT_EQ(out.size(1), 3);
    const at::Tensor all = gather_from_group(out, group, 1);
    const at::Tensor expected = whole.down->forward(torch::gelu(whole.up->forward(same(y))));
    EXPECT_LT(tensor_difference(all, expected), 1e-12);
    (all * weights).sum().backward();
    (expected * weights).sum().backward();
    EXPECT_LT(tensor_difference(x.grad(), y.grad()), 1e-12);
    EXPECT_LT(tensor_difference(norm->weight.grad(), same->weight.grad()), 1e-12);
    EXPECT_LT(tensor_difference(norm->bias.grad(), same->bias.grad()), 1e-12);
    EXPECT_LT(tensor_difference(down->bias.grad(), whole.down->bias.grad()), 1e-12);
    const at::Tensor gradient = gather_from_group(up->weight.grad(), group, 0);
    EXPECT_LT(tensor_difference(gradient, whole.up->weight.grad()), 1e-12);
  });
}

TEST_P(TensorParallelTest, SequenceFunctionsAreEachOthersBackward) {
  run([](ProcessGroup& group) {
    const int64_t n = group.size(), rank = group.rank();
    const auto of_rank = [&](int64_t r) {
      return tensor_numbers({3, 2 * n}, 10 + static_cast<uint64_t>(r));
    };
    at::Tensor sum = at::zeros({3, 2 * n}, at::kDouble);
    for (int64_t r = 0; r < n; ++r)
      sum += of_rank(r);
    at::Tensor x = of_rank(rank).requires_grad_();
    const at::Tensor scattered = reduce_scatter_sequence(x, group, -1);
    EXPECT_LT(tensor_difference(scattered, sum.narrow(1, 2 * rank, 2)), 1e-12);
    const at::Tensor joined = gather_sequence(scattered, group, 1);
    EXPECT_LT(tensor_difference(joined, sum), 1e-12);
    (joined * of_rank(rank)).sum().backward();  // another loss on each rank: the sum of all counts
    EXPECT_LT(tensor_difference(x.grad(), sum), 1e-12);
  });
}

// Ranks are threads here, of which each takes a number of the one generator that the process has.
TEST_P(TensorParallelTest, DropoutHasOtherMasksOnEachRankAndTheSameAgain) {
  run([](ProcessGroup& group) {
    const auto masks = [&](uint64_t seed) {
      if (group.size() == 1)
        torch::manual_seed(seed);
      SequenceDropout dropout(0.25, group);
      at::Tensor ones = torch::ones({1000}).requires_grad_();
      const at::Tensor out = dropout(ones);
      out.sum().backward();
      EXPECT_TRUE(ones.grad().equal(out));
      EXPECT_NEAR((out == 0).to(at::kFloat).mean().item<float>(), 0.25, 0.06);
      EXPECT_FALSE(dropout(ones).equal(out));
      dropout->eval();
      EXPECT_TRUE(dropout(ones).equal(ones));
      return out.detach();
    };
    const at::Tensor first = masks(1);
    EXPECT_EQ(first.equal(masks(1)), group.size() == 1);
    EXPECT_FALSE(first.equal(masks(2)));
    const at::Tensor all = gather_from_group(first.unsqueeze(0), group, 0);
    for (int64_t r = 1; r < group.size(); ++r)
      EXPECT_FALSE(all[0].equal(all[r]));
  });
}

// What the ranks have alike would be clipped by another norm on each.
TEST_P(TensorParallelTest, ANormOfPartsAloneIsRefused) {
  run([](ProcessGroup& group) {
    TensorMlp whole(at::kFloat);
    torch::nn::Sequential model(column_parallel(whole.up, group), row_parallel(whole.down, group));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    Precision half(at::kCPU, "fp16");
    const auto refuses = [](const auto& call) {
      try {
        call();
      } catch (const Error& error) {
        return error.message().find("divided layers") != std::string::npos;
      }
      return false;
    };
    const bool divided = group.size() > 1;
    EXPECT_EQ(refuses([&] { grad_norm(model->parameters()); }), divided);
    EXPECT_EQ(refuses([&] { clip_grad_norm(model->parameters(), 1); }), divided);
    EXPECT_EQ(refuses([&] { TrainStep(model, optimizer, {.clip_norm = 1, .unreduced = true}); }),
              divided);
    EXPECT_EQ(
        refuses([&] { TrainStep(model, optimizer, {.precision = &half, .unreduced = true}); }),
        divided);
    TrainStep(model, optimizer, {.precision = &half, .group = group, .unreduced = true});
  });
}

std::string tensor_refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

// Each rank's samples, or its dropout masks, would go through a part of the layer.
TEST_P(TensorParallelTest, OtherInputsOfRanksAreRefused) {
  torch::nn::Embedding tokens(10, 6);
  run([&](ProcessGroup& group) {
    TensorMlp whole(at::kFloat);
    ColumnParallelLinear up = column_parallel(whole.up, group);
    ParallelEmbedding token = parallel_embedding(tokens, group);
    const at::Tensor x = tensor_numbers({16, 6}, 40 + group.rank(), at::kFloat);
    const at::Tensor ids = torch::arange(8) % (2 + group.rank());
    for (const auto& said : {tensor_refusal([&] { up(x); }), tensor_refusal([&] { token(ids); })}) {
      if (group.size() == 1)
        EXPECT_EQ(said, "");
      else
        EXPECT_THAT(said, HasSubstr("got other values on rank 1 than on rank 0"));
    }
    // The roundings of ranks may differ.
    const at::Tensor common = tensor_numbers({16, 6}, 40, at::kFloat);
    up(common * (1 + 1e-4 * group.rank()));
  });
}

// A rank whose part alone has a gradient that is not finite would skip the step alone.
TEST_P(TensorParallelTest, StepsThatARankWouldSkipAloneAreRefused) {
  run([](ProcessGroup& group) {
    TensorMlp whole(at::kFloat);
    torch::nn::Sequential model(column_parallel(whole.up, group), row_parallel(whole.down, group));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    Mesh mesh(group, {{"dp", 1}, {"tp", group.size()}});
    const auto refusal_with = [&](const std::optional<ProcessGroup>& agreeing, OnNonfinite then) {
      return tensor_refusal([&] {
        TrainStep(model,
                  optimizer,
                  {.on_nonfinite = then, .go_back = {}, .group = agreeing, .unreduced = true});
      });
    };
    const char* const expected = group.size() > 1 ? "ranks would disagree on which steps" : "";
    EXPECT_THAT(refusal_with({}, OnNonfinite::skip), HasSubstr(expected));
    EXPECT_THAT(refusal_with(mesh.group("dp"), OnNonfinite::skip), HasSubstr(expected));
    EXPECT_EQ(refusal_with(mesh.group("tp"), OnNonfinite::skip), "");
    EXPECT_EQ(refusal_with({}, OnNonfinite::stop), "");
  });
}

// The evaluation's loader is another than the training's.
TEST_P(TensorParallelTest, AnEvaluationOfEachRanksOwnSamplesIsRefused) {
  run([](ProcessGroup& group) {
    TensorMlp whole(at::kFloat);
    torch::nn::Sequential model(column_parallel(whole.up, group), row_parallel(whole.down, group));
    const TensorDataset data{tensor_numbers({8, 6}, 40, at::kFloat), torch::zeros({8})};
    const auto mean_over = [&](int replicas, int replica) {
      DistributedSampler sampler(
          8, {.num_replicas = replicas, .rank = replica, .shuffle = false, .pad = false});
      DataLoader loader(data, sampler, {.batch_size = 2});
      double mean = 0;
      for (const auto& batch : loader) {
        const torch::NoGradGuard no_grad;
        mean += model->forward(batch.features).mean().item<double>();
      }
      return mean;
    };
    for (int step = 0; step < 3; ++step)
      model->forward(data.features());
    const std::string said = tensor_refusal([&] { mean_over(group.size(), group.rank()); });
    if (group.size() == 1)
      EXPECT_EQ(said, "");
    else
      EXPECT_THAT(said, HasSubstr("got other values on rank 1 than on rank 0"));
    mean_over(1, 0);
  });
}

// One seed for an initialisation after the division gives all ranks the same outputs.
TEST_P(TensorParallelTest, PartsThatAreInitialisedAlikeAreSaidOnce) {
  const auto printed_with = [&](const auto& initialise) {
    ::testing::internal::CaptureStderr();
    run([&](ProcessGroup& group) {
      TensorMlp whole(at::kFloat);
      ColumnParallelLinear up = column_parallel(whole.up, group);
      {
        const torch::NoGradGuard no_grad;
        initialise(up->weight);
      }
      for (int step = 0; step < 3; ++step)
        up(tensor_numbers({16, 6}, 40, at::kFloat));
    });
    return ::testing::internal::GetCapturedStderr();
  };
  constexpr const char* kSaid = "column_parallel: expected another part of the weight";
  const auto alike = printed_with(
      [](const at::Tensor& w) { w.copy_(tensor_numbers(w.sizes().vec(), 3, at::kFloat)); });
  EXPECT_EQ(times(alike, kSaid), GetParam().ranks > 1 ? 1U : 0U) << alike;
  EXPECT_EQ(times(printed_with([](const at::Tensor& w) { w.fill_(0.5); }), kSaid), 0U);
  EXPECT_EQ(times(printed_with([](const at::Tensor&) {}), kSaid), 0U);
}

// A parameter between the two layers sees one rank's part of them.
TEST_P(TensorParallelTest, ParametersBetweenDividedLayersAreFound) {
  run([](ProcessGroup& group) {
    TensorMlp whole(at::kFloat);
    torch::nn::Sequential model(column_parallel(whole.up, group), row_parallel(whole.down, group));
    const at::Tensor scale = torch::full({1}, 2.0).requires_grad_();
    const at::Tensor x = tensor_numbers({16, 6}, 40, at::kFloat);
    const auto norm_with = [&](const at::Tensor& factor) {
      model->zero_grad();
      scale.mutable_grad().reset();
      const at::Tensor middle = model->ptr(0)->as<ColumnParallelLinear>()->forward(x);
      model->ptr(1)->as<RowParallelLinear>()->forward(middle * factor).square().sum().backward();
      const ParallelParameters all = parallel_parameters(*model);
      std::vector<at::Tensor> replicated = all.replicated;
      replicated.push_back(scale);
      return parallel_grad_norm(all.divided, replicated, group);
    };
    const std::string said = tensor_refusal([&] { norm_with(scale); });
    if (group.size() == 1)
      EXPECT_EQ(said, "");
    else
      EXPECT_THAT(said, HasSubstr("use copy_to_group(parameter, group) in forward"));
    norm_with(copy_to_group(scale, group));
  });
}

// Rank 0's parts would replace the others', and with them the layers.
TEST_P(TensorParallelTest, DistributedDataParallelOverTheirOwnRanksIsRefused) {
  run([](ProcessGroup& group) {
    TensorMlp whole(at::kFloat);
    torch::nn::Sequential model(column_parallel(whole.up, group), row_parallel(whole.down, group));
    const auto before = model->parameters()[0].clone();
    const std::string said = tensor_refusal(
        [&] { DistributedDataParallel<torch::nn::Sequential> wrapped(model, group); });
    if (group.size() == 1)
      EXPECT_EQ(said, "");
    else
      EXPECT_THAT(said, HasSubstr("expected ranks with the same part of each divided layer"));
    EXPECT_TRUE(model->parameters()[0].equal(before));
  });
}

// Ranks would skip other steps.
TEST_P(TensorParallelTest, ALossScaleWithoutAGroupIsRefused) {
  run([](ProcessGroup& group) {
    TensorMlp whole(at::kFloat);
    ColumnParallelLinear up = column_parallel(whole.up, group);
    Precision half(at::kCPU, "fp16");
    half.scale(up(torch::ones({2, 6})).sum()).backward();
    const std::string said = tensor_refusal([&] { half.unscale(up->parameters()); });
    EXPECT_EQ(said.find("that share the model out") != std::string::npos, group.size() > 1) << said;
  });
}

TEST_P(TensorParallelTest, TheNormOfGradientsIsTheUndividedModels) {
  run([](ProcessGroup& group) {
    TensorMlp whole(at::kDouble);
    torch::nn::Sequential model(column_parallel(whole.up, group),
                                torch::nn::Functional(torch::relu),
                                row_parallel(whole.down, group));
    const at::Tensor x = tensor_numbers({4, 6}, 9);
    model->forward(x).square().sum().backward();
    whole.down->forward(torch::relu(whole.up->forward(x))).square().sum().backward();
    std::vector<at::Tensor> all = whole.up->parameters();
    for (const at::Tensor& parameter : whole.down->parameters())
      all.push_back(parameter);
    const ParallelParameters parameters = parallel_parameters(*model);
    EXPECT_EQ(parameters.divided.size(), 3U);
    EXPECT_EQ(parameters.replicated.size(), 1U);
    for (const double type : {1.0, 2.0, 3.0, static_cast<double>(INFINITY)}) {
      const double expected = grad_norm(all, type).item<double>();
      const double got =
          parallel_grad_norm(parameters.divided, parameters.replicated, group, type).item<double>();
      EXPECT_NEAR(got / expected, 1, 1e-12) << "of type " << type;
    }
    EXPECT_THROW(parallel_grad_norm(parameters.divided, {}, group, 0), Error);
    const WholeParameters gathered = gather_parameters(*model);
    EXPECT_TRUE(gathered.at("0.weight").equal(whole.up->weight));
    EXPECT_TRUE(gathered.at("2.weight").equal(whole.down->weight));
    EXPECT_TRUE(gathered.at("2.bias").equal(whole.down->bias));
    EXPECT_EQ(gathered.size(), 4U);
  });
}

TEST_P(TensorParallelTest, StacksAreDividedEach) {
  run([](ProcessGroup& group) {
    torch::nn::Linear whole = tensor_linear(5, 3 * 8, 7);
    ColumnParallelLinear mine = column_parallel(whole, group, {.stacks = 3});
    const at::Tensor x = tensor_numbers({2, 5}, 8);
    const at::Tensor expected =
        whole->forward(x).view({2, 3, group.size(), -1}).select(2, group.rank());
    EXPECT_LT(tensor_difference(mine(x).view({2, 3, -1}), expected), 1e-12);
    EXPECT_TRUE(mine->gather_parameters().at("weight").equal(whole->weight));
    EXPECT_TRUE(mine->gather_parameters().at("bias").equal(whole->bias));
  });
}

TEST_P(TensorParallelTest, AScatteredPartIsFresh) {
  run([](ProcessGroup& group) {
    const at::Tensor x = torch::zeros({4 * group.size(), 3});
    const torch::NoGradGuard no_grad;
    scatter_to_group(x, group, 0).fill_(1);
    EXPECT_EQ(x.abs().sum().item<float>(), 0);
  });
}

TEST(TensorParallel, WhatTheRanksDoNotDivideIsRefusedOnEachRank) {
  const auto column = failures_of_ranks(
      2, [](ProcessGroup& group) { column_parallel(tensor_linear(4, 7, 1), group); });
  for (const auto& failure : column)
    EXPECT_THAT(message_of(failure), HasSubstr("expected outputs that 2 ranks divide, got 7"));
  const auto row = failures_of_ranks(
      2, [](ProcessGroup& group) { row_parallel(tensor_linear(5, 4, 1), group); });
  for (const auto& failure : row)
    EXPECT_THAT(message_of(failure), HasSubstr("expected inputs that 2 ranks divide, got 5"));
}

TEST(TensorParallel, SizesThatTheRanksDoNotDivideAreRefusedByTheFunctions) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    const at::Tensor x = torch::ones({4, 3});
    EXPECT_THROW(scatter_to_group(x, group, 2), Error);
    EXPECT_THROW(reduce_scatter_sequence(x, group, 1), Error);
    scatter_to_group(x, group, -1);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("along dimension 1 that 2 ranks divide, got 3 of [4, 3]"));
}

TEST(TensorParallel, LayersThatDifferAreRefusedOnEachRank) {
  const auto shapes = failures_of_ranks(2, [](ProcessGroup& group) {
    column_parallel(tensor_linear(4, 8 + 2 * group.rank(), 1), group);
  });
  for (const auto& failure : shapes)
    EXPECT_THAT(message_of(failure), HasSubstr("Double [10, 4]"));
  const auto seeds = failures_of_ranks(2, [](ProcessGroup& group) {
    row_parallel(tensor_linear(4, 8, static_cast<uint64_t>(group.rank())), group);
  });
  for (const auto& failure : seeds)
    EXPECT_THAT(message_of(failure), HasSubstr("the same model, seed and options"));
}

TEST(TensorParallel, ARankThatThrowsInTheMiddleIsAnErrorOnTheOthers) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    RowParallelLinear layer = row_parallel(tensor_linear(4, 8, 1), group);
    if (group.rank() == 1)
      throw Error(ErrorCode::io, "no space left");
    layer(tensor_numbers({3, 2}, 1));
  });
  EXPECT_THROW(std::rethrow_exception(failures[0]), Error);
}

}  // namespace
}  // namespace muster::testing
