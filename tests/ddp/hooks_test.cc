// Hooks beside DDP's own checks: failures have names and are recovered from, what hooks remember
// follows the parameters and can be saved. That their gradients are Python's, hook_table.cc shows.
#include "muster/ddp/hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class HookTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

std::vector<Hook> one_of_each() {
  return {plain_average(),
          fp16_compression(),
          bf16_compression(),
          power_sgd({.start_step = 1, .min_compression_rate = 0.1}),
          top_k({.density = 0.4}),
          quantized_8bit({.block = 4})};
}

Hook mean_of_all(int64_t* calls = nullptr) {
  return [calls](GradientBucket bucket) {
    if (calls != nullptr)
      ++*calls;
    bucket.group.all_reduce(bucket.tensor);
    return bucket.tensor.div_(bucket.group.size());
  };
}

void train_some_steps(ProcessGroup& group,
                      DistributedDataParallel<torch::nn::Sequential>& model,
                      int from,
                      int to) {
  torch::optim::SGD optimizer(model.parameters(), 1e-5);
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    model(batch_of(group.rank(), step)).square().mean().backward();
    optimizer.step();
  }
}

TEST_P(HookTest, EveryHookLeavesTheSameGradientsOnAllRanks) {
  for (const size_t which : {0, 1, 2, 3, 4, 5}) {
    run_ranks(3,
              [&](ProcessGroup& group) {
                DistributedDataParallel model(two_layers(), group, {.hook = one_of_each()[which]});
                train_some_steps(group, model, 0, 4);
                EXPECT_TRUE(same_everywhere(group, model.parameters())) << which;
              },
              {.backend = GetParam()});
  }
}

TEST_P(HookTest, OptionsOfTheReducerHoldWithAHook) {
  for (const DdpOptions& options : {DdpOptions{.find_unused_parameters = true},
                                    DdpOptions{.gradient_as_bucket_view = false},
                                    DdpOptions{.static_graph = true},
                                    DdpOptions{.bucket_cap_mb = 0.00001}}) {
    run_ranks(2,
              [&](ProcessGroup& group) {
                DdpOptions with_hook = options;
                with_hook.hook = mean_of_all();
                auto net = two_layers();
                DistributedDataParallel model(net, group, with_hook);
                for (int step = 0; step < 3; ++step) {
                  const auto expected = mean_gradients(
                      group, net->forward(batch_of(group.rank(), step)).sum(), net->parameters());
                  model(batch_of(group.rank(), step)).sum().backward();
                  expect_gradients(net->parameters(), expected);
                  drop_gradients(*net);
                }
              },
              {.backend = GetParam()});
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         HookTest,
                         ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

// A matrix and a vector of complex numbers.
struct ComplexNetImpl : torch::nn::Module {
  ComplexNetImpl() {
    w = register_parameter("w", torch::ones({6, 4}, torch::kComplexDouble));
    b = register_parameter("b", torch::ones({6}, torch::kComplexDouble));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::abs(torch::matmul(w, x) + b).pow(2).sum();
  }
  at::Tensor w, b;
};
TORCH_MODULE(ComplexNet);

at::Tensor complex_input(int rank) {
  const auto real = torch::arange(4, torch::kDouble) + rank;
  return torch::complex(real, real.flip(0) * 2 - 3 * rank);
}

// What a hook does to all numbers of a bucket, it does to the real and imaginary parts of complex
// ones.
TEST_P(HookTest, ComplexGradientsAreReducedWhole) {
  const std::vector<std::function<Hook()>> exact = {
      plain_average,
      [] { return mean_of_all(); },
      [] { return top_k({.density = 1}); },
      [] { return power_sgd({.matrix_rank = 8, .start_step = 0, .min_compression_rate = 0}); },
      [] { return power_sgd({.matrix_rank = 8, .start_step = 0, .min_compression_rate = 1e9}); }};
  for (size_t which = 0; which < exact.size(); ++which) {
    run_ranks(2,
              [&](ProcessGroup& group) {
                ComplexNet net;
                DistributedDataParallel model(net, group, {.hook = exact[which]()});
                for (int step = 0; step < 3; ++step) {
                  const auto expected = mean_gradients(
                      group, net->forward(complex_input(group.rank())), net->parameters());
                  model(complex_input(group.rank())).backward();
                  for (size_t i = 0; i < expected.size(); ++i) {
                    EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i], 1e-9))
                        << "hook " << which << ", parameter " << i << "\n"
                        << net->parameters()[i].grad() << "\n"
                        << expected[i];
                  }
                  drop_gradients(*net);
                }
              },
              {.backend = GetParam()});
  }
}

TEST_P(HookTest, AComplexBucketIsGivenAsRealNumbers) {
  run_ranks(
      2,
      [&](ProcessGroup& group) {
        ComplexNet net;
        Hook looks = [](GradientBucket bucket) {
          int64_t numbers = 0;
          for (size_t i = 0; i < bucket.gradients.size(); ++i) {
            const at::Tensor& gradient = bucket.gradients[i];
            EXPECT_TRUE(gradient.sizes().equals(torch::view_as_real(bucket.parameters[i]).sizes()));
            EXPECT_TRUE(gradient.is_alias_of(bucket.tensor));
            EXPECT_TRUE(gradient.view(-1).equal(
                bucket.tensor.slice(0, numbers, numbers + gradient.numel())));
            numbers += gradient.numel();
          }
          EXPECT_EQ(numbers, bucket.tensor.numel());
          bucket.group.all_reduce(bucket.tensor, ReduceOp::avg);
          return bucket.tensor;
        };
        DistributedDataParallel model(net, group, {.hook = looks});
        for (int step = 0; step < 2; ++step)
          model(complex_input(group.rank())).backward();
      },
      {.backend = GetParam()});
}

TEST(Hooks, AFunctionMayReturnATensorAFutureOrWhatGivesOneLater) {
  const std::vector<std::function<Hook()>> kinds{
      [] { return mean_of_all(); },
      [] {
        return Hook([](GradientBucket bucket) {
          Work work = bucket.group.all_reduce_async(bucket.tensor);
          return [bucket, work]() mutable {
            work.wait();
            return bucket.tensor / bucket.group.size();
          };
        });
      },
      [] {
        return Hook([](GradientBucket bucket) {
          return std::async(std::launch::deferred, [bucket]() mutable {
            bucket.group.all_reduce(bucket.tensor);
            return bucket.tensor / bucket.group.size();
          });
        });
      },
      [] {
        return Hook([](const GradientBucket& bucket) -> Reduction {
          bucket.tensor.div_(bucket.group.size());
          std::vector<at::Tensor> tensors{bucket.tensor};
          return bucket.group.c10d()->allreduce(tensors)->getFuture();
        });
      }};
  for (const auto& make : kinds) {
    run_ranks(2, [&](ProcessGroup& group) {
      auto net = two_layers();
      DistributedDataParallel model(net, group, {.bucket_cap_mb = 0.00001, .hook = make()});
      for (int step = 0; step < 3; ++step) {
        const auto expected =
            mean_gradients(group, net->forward(batch_of(group.rank())).sum(), net->parameters());
        model(batch_of(group.rank())).sum().backward();
        expect_gradients(net->parameters(), expected);
        drop_gradients(*net);
      }
    });
  }
}

TEST(Hooks, GetTheBucketsParametersNamesAndGradients) {
  run_ranks(1, [](ProcessGroup& group) {
    std::vector<std::string> seen;
    auto net = two_layers();
    const Hook hook = [&](GradientBucket bucket) {
      EXPECT_EQ(bucket.last, bucket.index == 0);
      for (size_t i = 0; i < bucket.names.size(); ++i) {
        EXPECT_EQ(bucket.gradients[i].sizes(), bucket.parameters[i].sizes());
        seen.push_back(bucket.names[i]);
      }
      return bucket.tensor.mul_(2);
    };
    DistributedDataParallel model(net, group, {.hook = hook});
    model(batch_of(0)).sum().backward();
    EXPECT_THAT(seen, ::testing::UnorderedElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
    EXPECT_EQ(net->parameters()[3].grad()[0].item<float>(), 4);  // 2 samples, times 2
  });
}

TEST(Hooks, FailuresComeOutOfBackwardWithNamesAndTheNextStepIsRight) {
  enum class Fails { at_once, later, other_shape };
  for (const Fails how : {Fails::at_once, Fails::later, Fails::other_shape}) {
    run_ranks(2, [&](ProcessGroup& group) {
      int step = 0;
      const Hook hook = [&](GradientBucket bucket) -> Reduction {
        bucket.group.all_reduce(bucket.tensor);
        bucket.tensor.div_(2);
        if (step != 1)
          return bucket.tensor;
        if (how == Fails::at_once)
          throw std::runtime_error("no luck");
        if (how == Fails::other_shape)
          return bucket.tensor.slice(0, 1);
        return []() -> at::Tensor {
          throw std::runtime_error("no luck");
        };
      };
      auto net = two_layers();
      DistributedDataParallel model(net, group, {.hook = hook});
      for (step = 0; step < 4; ++step) {
        const auto expected =
            mean_gradients(group, net->forward(batch_of(group.rank())).sum(), net->parameters());
        const auto loss = model(batch_of(group.rank())).sum();
        if (step == 1) {
          const auto text =
              HasSubstr(how == Fails::other_shape ? "expected a tensor like the bucket's, Float ["
                                                  : "no luck");
          try {
            loss.backward();
            ADD_FAILURE() << "no error";
          } catch (const Error& error) {
            EXPECT_THAT(error.message(),
                        AllOf(HasSubstr("hook a function, bucket 0 ("),
                              HasSubstr("1.weight"),
                              HasSubstr("rank"),
                              text));
          }
          continue;
        }
        loss.backward();
        expect_gradients(net->parameters(), expected);
        drop_gradients(*net);
      }
    });
  }
}

TEST(Hooks, AFailedBackwardLeavesPowerSgdAlikeOnAllRanks) {
  run_ranks(2, [](ProcessGroup& group) {
    const Hook hook = power_sgd({.start_step = 0, .min_compression_rate = 0.1});
    auto net = two_layers();
    DistributedDataParallel model(net, group, {.hook = hook});
    train_some_steps(group, model, 0, 3);
    const auto cut = net->parameters()[0].register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("cut short"); });
    EXPECT_ANY_THROW(model(batch_of(group.rank())).square().mean().backward());
    net->parameters()[0].remove_hook(cut);
    train_some_steps(group, model, 3, 6);
    EXPECT_TRUE(same_everywhere(group, net->parameters()));
    const auto numbers = hook.state().numbers;
    const auto all = group.all_gather_bytes(cat(numbers.at("step"), " ", numbers.at("drawn")));
    EXPECT_EQ(all[0], all[1]);
  });
}

TEST(Hooks, TheStepCheckHolds) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(two_layers(), group, {.hook = fp16_compression()});
    for (int step = 0; step < 2; ++step) {
      const auto loss = model(batch_of(group.rank())).sum();
      if (step == 0 && group.rank() == 1)
        continue;  // skips a backward
      loss.backward();
    }
    if (group.rank() == 1)
      model(batch_of(1)).sum().backward();
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("DistributedDataParallel"));
}

TEST(Hooks, WhatIsRememberedFollowsFrozenParameters) {
  for (const size_t which : {3, 4}) {
    run_ranks(2, [&](ProcessGroup& group) {
      const Hook hook = one_of_each()[which];
      auto net = two_layers();
      DistributedDataParallel model(net, group, {.hook = hook});
      train_some_steps(group, model, 0, 3);
      net->parameters()[0].set_requires_grad(false);
      net->parameters()[0].mutable_grad().reset();
      train_some_steps(group, model, 3, 5);
      net->parameters()[0].set_requires_grad(true);
      train_some_steps(group, model, 5, 8);
      EXPECT_TRUE(same_everywhere(group, net->parameters()));
      EXPECT_TRUE(hook.state().own.contains("error.0.weight"));
    });
  }
}

TEST(Hooks, AStateGoesOnWhereItWasSaved) {
  for (const size_t which : {3, 4}) {
    run_ranks(2, [&](ProcessGroup& group) {
      const Hook whole = one_of_each()[which];
      auto net = two_layers();
      DistributedDataParallel model(net, group, {.hook = whole});
      train_some_steps(group, model, 0, 3);
      const HookState state = whole.state();
      auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
      train_some_steps(group, model, 3, 6);

      const Hook resumed = one_of_each()[which];
      resumed.load_state(state);
      torch::nn::Sequential other(copy);
      DistributedDataParallel second(other, group, {.hook = resumed});
      train_some_steps(group, second, 3, 6);
      // A new Reducer's first buckets have another order: other memory, and other last bits.
      for (size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_TRUE(net->parameters()[i].allclose(other->parameters()[i], 1e-5, 1e-6))
            << which << " " << i;
      EXPECT_EQ(resumed.state().numbers, whole.state().numbers);
    });
  }
}

TEST(Hooks, RefusesAStateOfAnother) {
  HookState state;
  state.numbers["lottery"] = 7;
  for (const Hook& hook : {power_sgd(), top_k(), Hook()}) {
    try {
      hook.load_state(state);
      ADD_FAILURE() << hook.name();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    }
  }
}

TEST(Hooks, RanksWithDifferentHooksAreRefusedByName) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    const Hook hook =
        group.rank() == 0 ? power_sgd({.matrix_rank = 2}) : power_sgd({.matrix_rank = 4});
    DistributedDataParallel model(two_layers(), group, {.hook = hook});
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), AllOf(HasSubstr("rank 2,"), HasSubstr("rank 4,")));
}

TEST(Hooks, OneThatRemembersBelongsToOneModel) {
  run_ranks(1, [](ProcessGroup& group) {
    const Hook hook = top_k();
    {
      DistributedDataParallel first(two_layers(), group, {.hook = hook});
      try {
        DistributedDataParallel second(two_layers(), group, {.hook = hook});
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr("top_k(density 0.01)"));
      }
    }
    EXPECT_NO_THROW((DistributedDataParallel(two_layers(), group, {.hook = hook})));
  });
}

TEST(Hooks, TwoModelsInOneLoopHaveEachItsOwn) {
  run_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel first(two_layers(), group, {.hook = top_k({.density = 0.5})});
    DistributedDataParallel second(
        two_layers(), group, {.hook = power_sgd({.start_step = 1, .min_compression_rate = 0.1})});
    for (int step = 0; step < 4; ++step) {
      const auto x = batch_of(group.rank(), step);
      (first(x).square().mean() + second(x).square().mean()).backward();
      EXPECT_TRUE(same_everywhere(group, first.parameters()));
      EXPECT_TRUE(same_everywhere(group, second.parameters()));
      drop_gradients(*first.module());
      drop_gradients(*second.module());
    }
  });
}

TEST(Hooks, MicroBatchesAreSentOnce) {
  run_ranks(2, [](ProcessGroup& group) {
    int64_t calls = 0;
    auto net = two_layers();
    DistributedDataParallel model(net, group, {.hook = mean_of_all(&calls)});
    for (const bool last : {false, false, true}) {
      const auto guard = model.no_sync_if(!last);
      model(batch_of(group.rank())).sum().backward();
    }
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(same_everywhere(group, net->parameters()));
  });
}

TEST(Hooks, SparseGradientsAreAveragedWithoutThem) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::manual_seed(1);
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DistributedDataParallel model(embedding, group, {.hook = fp16_compression()});
    model(torch::tensor({int64_t{group.rank()}, int64_t{4}})).sum().backward();
    const auto gradient = embedding->weight.grad().to_dense();
    EXPECT_EQ(gradient[group.rank()][0].item<float>(), 0.5);
    EXPECT_EQ(gradient[4][0].item<float>(), 1);
  });
}

TEST(Hooks, RefuseNumbersThatMakeNoSense) {
  EXPECT_THROW(top_k({.density = 0}), Error);
  EXPECT_THROW(top_k({.density = 2}), Error);
  EXPECT_THROW(power_sgd({.matrix_rank = 0}), Error);
  EXPECT_THROW(power_sgd({.start_step = -1}), Error);
  EXPECT_THROW(quantized_8bit({.block = -1}), Error);
}

// As NaN without a hook does: the step is to be seen as one that failed.
TEST(Hooks, NanStaysNan) {
  for (const size_t which : {0, 1, 2, 4, 5}) {
    run_ranks(2, [&](ProcessGroup& group) {
      auto net = two_layers();
      DistributedDataParallel model(net, group, {.hook = one_of_each()[which]});
      const auto x =
          group.rank() == 1 ? batch_of(1) * std::numeric_limits<float>::quiet_NaN() : batch_of(0);
      model(x).sum().backward();
      EXPECT_TRUE(net->parameters()[0].grad().isnan().any().item<bool>()) << which;
    });
  }
}

}  // namespace
}  // namespace muster::testing
