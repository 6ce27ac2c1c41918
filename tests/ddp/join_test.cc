// Uneven inputs, and parameters that are compared, ignored, scripted or given as a list. That the
// numbers are Python's, ddp_more.cc shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstdlib>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/ddp/replica_check.h"
#include "muster/ddp/sync_batch_norm.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class JoinTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  InitOptions backend() const { return {.backend = GetParam()}; }
};

// Rank r has 1 + 2 · r inputs.
void run_uneven_steps(ProcessGroup& group, DistributedDataParallel<torch::nn::Sequential>& model) {
  torch::optim::SGD optimizer(model.parameters(), 1e-4);
  for (int step = 0; step < 1 + 2 * group.rank(); ++step) {
    optimizer.zero_grad();
    model(batch_of(group.rank(), step)).square().mean().backward();
    optimizer.step();
  }
}

bool same_parameters(ProcessGroup& group, const torch::nn::Module& net) {
  std::string mine;
  for (const auto& parameter : net.parameters())
    mine += std::to_string(hash_of_bits(parameter)) + " ";
  const auto all = group.all_gather_bytes(mine);
  return std::all_of(all.begin(), all.end(), [&](const auto& other) { return other == all[0]; });
}

// A shadow would run one backward for each forward of the others.
TEST_P(JoinTest, TwoForwardsOfAStepAreRefused) {
  const auto failures = failures_of_ranks(
      2,
      [](ProcessGroup& group) {
        DistributedDataParallel model(two_layers(), group);
        model.join([&] {
          const auto one = model(batch_of(0, 0)), other = model(batch_of(1, 0));
          (one.square().mean() + other.square().mean()).backward();
        });
      },
      backend());
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                AllOf(HasSubstr("join: expected a backward after each forward, got another forward "
                                "before it (rank "),
                      HasSubstr("run both in one forward of the wrapped model"),
                      HasSubstr("put NoGradGuard around a forward that has no backward")));
}

// The ranks that shadow count from join() on.
TEST_P(JoinTest, AForwardBeforeItIsNoSecondOne) {
  run_ranks(
      3,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        model(batch_of(0));
        EXPECT_EQ(model.join([&] { run_uneven_steps(group, model); }).shadowed,
                  2 * (2 - group.rank()));
        EXPECT_TRUE(same_parameters(group, *net));
      },
      backend());
}

TEST_P(JoinTest, ARankWithoutInputsShadowsTheOthersAndEndsWithTheirModel) {
  run_ranks(
      3,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group, {.verify_every = 1});
        const auto result = model.join([&] { run_uneven_steps(group, model); });
        EXPECT_EQ(result.shadowed, 2 * (2 - group.rank()));
        EXPECT_FALSE(result.stopped);
        EXPECT_TRUE(same_parameters(group, *net));
        // And on, as if nothing had been.
        drop_gradients(*net);
        const auto expected =
            mean_gradients(group, net->forward(batch_of(group.rank())).sum(), net->parameters());
        model(batch_of(group.rank())).sum().backward();
        expect_gradients(net->parameters(), expected);
      },
      backend());
}

TEST_P(JoinTest, EveryHookIsShadowed) {
  for (const size_t which : {0, 1, 2, 3}) {
    run_ranks(
        2,
        [&](ProcessGroup& group) {
          const Hook hook = which == 0   ? power_sgd({.start_step = 1, .min_compression_rate = 0.1})
                            : which == 1 ? top_k({.density = 0.3})
                            : which == 2 ? quantized_8bit()
                                         : bf16_compression();
          auto net = two_layers();
          DistributedDataParallel model(net, group, {.bucket_cap_mb = 0.00001, .hook = hook});
          model.join([&] { run_uneven_steps(group, model); });
          EXPECT_TRUE(same_parameters(group, *net)) << which;
        },
        backend());
  }
}

TEST_P(JoinTest, ARankWithoutAnyInputShadowsFromTheStart) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group, {.find_unused_parameters = true});
        const auto result = model.join([&] {
          if (group.rank() == 0)
            return;
          for (int step = 0; step < 3; ++step) {
            drop_gradients(*net);
            model(batch_of(1, step)).sum().backward();
            EXPECT_EQ(net->parameters()[3].grad()[0].item<float>(), 1);  // 2 samples of 2 ranks
          }
        });
        EXPECT_EQ(result.shadowed, group.rank() == 0 ? 3 : 0);
      },
      backend());
}

TEST_P(JoinTest, StopTogetherEndsAllAtTheFirstThatIsThrough) {
  run_ranks(
      3,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        int steps = 0;
        const auto result = model.join(
            [&] {
              for (; steps < 2 + group.rank(); ++steps)
                model(batch_of(group.rank())).sum().backward();
            },
            {.stop_together = true});
        EXPECT_TRUE(result.stopped);
        EXPECT_EQ(steps, 2);
        const auto even = model.join([&] { model(batch_of(group.rank())).sum().backward(); },
                                     {.stop_together = true});
        EXPECT_FALSE(even.stopped);
      },
      backend());
}

// A rank that shadows takes no steps: without the last rank's state the next epoch's steps are its
// own.
TEST_P(JoinTest, OptimizersGoOnWithTheLastRanksState) {
  for (const bool adam : {false, true}) {
    run_ranks(
        3,
        [&](ProcessGroup& group) {
          auto net = two_layers();
          DistributedDataParallel model(net, group);
          std::unique_ptr<torch::optim::Optimizer> optimizer;
          if (adam) {
            optimizer = std::make_unique<torch::optim::Adam>(model.parameters(), 0.01);
          } else {
            optimizer = std::make_unique<torch::optim::SGD>(
                model.parameters(), torch::optim::SGDOptions(1e-4).momentum(0.9));
          }
          for (int epoch = 0; epoch < 2; ++epoch) {
            const int inputs =
                epoch == 0 ? 2 * group.rank() : 2 + 2 * group.rank();  // rank 0 has none at first
            model.join(
                [&] {
                  for (int step = 0; step < inputs; ++step) {
                    optimizer->zero_grad();
                    model(batch_of(group.rank(), step)).square().mean().backward();
                    optimizer->step();
                    if (epoch == 1 && step < 2) {
                      EXPECT_TRUE(same_parameters(group, *net)) << step;
                    }
                  }
                },
                {.optimizers = {optimizer.get(), nullptr}});
            EXPECT_TRUE(same_parameters(group, *net)) << epoch;
          }
          for (int step = 0; step < 3; ++step) {
            optimizer->zero_grad();
            model(batch_of(group.rank(), step)).square().mean().backward();
            optimizer->step();
            EXPECT_TRUE(same_parameters(group, *net)) << step;
          }
        },
        backend());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         JoinTest,
                         ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Join, RefusesWhatItCannotShadow) {
  const auto refusal = [](const DdpOptions& options, const auto& body) {
    return message_of(failures_of_ranks(2, [&](ProcessGroup& group) {
      auto net = two_layers();
      DistributedDataParallel model(net, group, options);
      model.join([&] { body(model, group); });
    })[1]);
  };
  EXPECT_THAT(refusal({.static_graph = true}, [](auto&, auto&) {}),
              HasSubstr("got a static graph"));
  EXPECT_THAT(refusal({}, [](auto& model, auto&) { model.join([] {}); }),
              HasSubstr("inside of it"));
  EXPECT_THAT(refusal({},
                      [](auto& model, auto& group) {
                        if (group.rank() == 0)
                          return;
                        model(batch_of(1)).sum().backward();
                        model.parameters()[0].set_requires_grad(false);
                        model(batch_of(1)).sum().backward();
                      }),
              HasSubstr("the same parameters throughout join()"));
  EXPECT_THAT(refusal({},
                      [](auto& model, auto& group) {
                        const auto guard = model.no_sync_if(group.rank() == 0);
                        model(batch_of(1)).sum().backward();
                      }),
              HasSubstr("forwards of one kind"));
  EXPECT_THAT(refusal({},
                      [](auto&, auto& group) {
                        if (group.rank() == 1)
                          throw std::runtime_error("mine");
                      }),
              HasSubstr("mine"));
}

TEST(Join, NamesTheRanksOfASubGroupAsTheJobDoes) {
  run_ranks(3, [](ProcessGroup& group) {
    auto pair = group.new_group({2, 1});
    if (!pair)
      return;
    DistributedDataParallel model(two_layers(), *pair);
    try {
      model.join([&] {
        const auto guard = model.no_sync_if(group.rank() == 2);
        model(batch_of(1)).sum().backward();
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(),
                  HasSubstr(cat("another kind on rank 1 than on rank 2 (rank ", group.rank())));
    }
  });
}

TEST(Join, RefusesStatisticsOfAllRanks) {
  for (const int inputs_of_rank_0 : {0, 2}) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
      convert_sync_batch_norm(*net, group);
      DistributedDataParallel model(net, group);
      const auto train = [&](int steps) {
        for (int step = 0; step < steps; ++step)
          model(torch::rand({4, 3})).square().mean().backward();
      };
      train(1);
      EXPECT_TRUE(model.join([&] { train(2 + group.rank()); }, {.stop_together = true}).stopped);
      model.join([&] { train(group.rank() == 0 ? inputs_of_rank_0 : 4); });
    });
    EXPECT_THAT(
        message_of(failures[1]),
        AllOf(HasSubstr("sync_batch_norm: expected to be outside of join()"), HasSubstr("rank 1")));
    EXPECT_NE(message_of(failures[0]), "");
  }
}

TEST(VerifyEvery, NamesTheFirstParameterAndTheRanks) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    auto net = two_layers();
    DistributedDataParallel model(net, group, {.verify_every = 2});
    for (int step = 0; step < 4; ++step) {
      model(batch_of(group.rank())).sum().backward();
      if (step != 0 || group.rank() != 1)
        continue;
      const torch::NoGradGuard no_grad;
      net->parameters()[2].view(-1)[3] += 1e-7;  // seen by the second forward
    }
  });
  for (const auto& failure : failures)
    EXPECT_THAT(
        message_of(failure),
        AllOf(HasSubstr("parameter '1.weight' on rank 1 ("), HasSubstr("before forward 2")));
}

TEST(VerifyEvery, LooksAtBuffersWhereAsked) {
  const auto train = [](bool buffers) {
    return failures_of_ranks(2, [&](ProcessGroup& group) {
      torch::nn::BatchNorm1d net(3);
      DistributedDataParallel model(
          net, group, {.broadcast_buffers = false, .verify_every = 1, .verify_buffers = buffers});
      for (int step = 0; step < 2; ++step)
        model(torch::rand({4, 3}) + group.rank()).sum().backward();
    });
  };
  EXPECT_EQ(message_of(train(false)[0]), "");
  EXPECT_THAT(message_of(train(true)[0]), HasSubstr("buffer 'running_mean'"));
}

TEST(VerifyEvery, HashesEveryBitAndOrder) {
  const auto a = torch::randn({3, 5});
  auto b = a.clone();
  EXPECT_EQ(hash_of_bits(a), hash_of_bits(b));
  EXPECT_EQ(hash_of_bits(a.t()), hash_of_bits(a.t().contiguous()));
  EXPECT_NE(hash_of_bits(a), hash_of_bits(a.flip(0)));
  EXPECT_NE(hash_of_bits(torch::zeros({2})), hash_of_bits(torch::zeros({3})));
  EXPECT_NE(hash_of_bits(torch::zeros({1})), hash_of_bits(-torch::zeros({1})));
  EXPECT_NE(hash_of_bits(torch::tensor({1, 2}, torch::kByte)),
            hash_of_bits(torch::tensor({2, 1}, torch::kByte)));
}

TEST(IgnoredParameters, StayEachRanksOwn) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = two_layers();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters())
        parameter.fill_(1 + group.rank());
    }
    DistributedDataParallel model(
        net, group, {.ignored_parameters = {"0.weight", net->parameters()[1]}});
    EXPECT_EQ(net->parameters()[0][0][0].item<float>(), 1 + group.rank());
    EXPECT_EQ(net->parameters()[1][0].item<float>(), 1 + group.rank());
    EXPECT_EQ(net->parameters()[2][0][0].item<float>(), 1);
    model(batch_of(group.rank())).sum().backward();
    EXPECT_TRUE(same_everywhere(group, {net->parameters()[3]}));
    EXPECT_FALSE(same_everywhere(group, {net->parameters()[0]}));
  });
  const auto failures = failures_of_ranks(1, [](ProcessGroup& group) {
    DistributedDataParallel model(two_layers(), group, {.ignored_parameters = {"0.wieght"}});
  });
  EXPECT_THAT(message_of(failures[0]), HasSubstr("'0.wieght'"));
}

// A head under the same names is as much each rank's own as the one that it replaces.
TEST(IgnoredParameters, GivenByNameMayBeReplaced) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    DistributedDataParallel model(
        net, group, {.ignored_parameters = {"1.weight", "1.bias", "1.running_mean"}});
    model(batch_of(group.rank())).sum().backward();
    torch::nn::BatchNorm1d head(4);
    torch::nn::init::constant_(head->weight, 1 + group.rank());
    torch::nn::init::constant_(head->bias, 1 + group.rank());
    torch::nn::init::constant_(head->running_mean, 1 + group.rank());
    net->replace_module("1", head);
    for (int step = 0; step < 2; ++step) {
      drop_gradients(*net);
      model(batch_of(group.rank(), step)).square().sum().backward();
      EXPECT_EQ(head->weight[0].item<float>(), 1 + group.rank());
      EXPECT_FALSE(same_everywhere(group, {head->bias}));
      EXPECT_TRUE(same_everywhere(group, {net->parameters()[0], net->parameters()[1]}));
      EXPECT_TRUE(model.reducer().ignores(head->weight));
    }
  });
}

TEST(ScriptModules, AreReducedAndTheirOutputsFound) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::jit::Module script("net");
    script.register_parameter(
        "w", torch::full({3}, 1.F + static_cast<float>(group.rank())).requires_grad_(), false);
    script.register_parameter("v", torch::ones({3}).requires_grad_(), false);
    script.define(R"(
def forward(self, x: Tensor):
    return {"a": (x * self.w, [x * self.v])}
)");
    for (const bool unused : {false, true}) {
      DistributedDataParallel model(script, group, {.find_unused_parameters = unused});
      EXPECT_EQ(script.attr("w").toTensor()[0].item<float>(), 1);  // rank 0's
      for (int step = 0; step < 3; ++step) {
        const auto output = model(torch::ones({3}) * (1 + group.rank())).toGenericDict();
        const auto pair = output.at("a").toTuple();
        auto loss = pair->elements()[0].toTensor().sum();
        if (!unused)
          loss = loss + pair->elements()[1].toTensorList().get(0).sum();
        loss.backward();
        EXPECT_EQ(script.attr("w").toTensor().grad()[0].item<float>(), 1.5);
        for (auto& parameter : model.parameters())
          parameter.mutable_grad().reset();
      }
    }
    EXPECT_TRUE(script.is_training());
  });
}

TEST_P(JoinTest, ComplexParametersAreReduced) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto w = torch::ones({600}, torch::kComplexFloat).requires_grad_();
        auto v = torch::ones({5}).requires_grad_();
        GradientReducer reducer({{"w", w}, {"v", v}}, group);
        for (int step = 0; step < 3; ++step) {
          const c10::complex<float> factor(1, 2 + 2 * static_cast<float>(group.rank()));
          reducer.forward([&] { return at::real((w * factor).sum()) + v.sum(); }).backward();
          EXPECT_TRUE(
              w.grad().equal(torch::full({600}, c10::complex<float>(1, -3), torch::kComplexFloat)))
              << step << " " << w.grad()[0];
          EXPECT_TRUE(v.grad().equal(torch::ones({5})));
          w.mutable_grad().reset();
          v.mutable_grad().reset();
        }
      },
      backend());
  // LibTorch's default, for groups of other backends.
  const char* left = std::getenv("DDP_DISABLE_COMM_MEM");
  EXPECT_STREQ(left != nullptr ? left : "1", "1");
}

TEST(PlainLists, AreReducedAndNamed) {
  run_ranks(2, [](ProcessGroup& group) {
    auto a = torch::full({2}, 1.F + static_cast<float>(group.rank())).requires_grad_();
    auto b = torch::ones({2}).requires_grad_();
    GradientReducer reducer({{"first", a}, b}, group);
    EXPECT_EQ(a[0].item<float>(), 1);
    reducer.forward([&] { return (a * b).sum() * (1 + group.rank()); }).backward();
    EXPECT_EQ(a.grad()[0].item<float>(), 1.5);
    try {
      reducer.forward([&] { return a.sum(); }).backward();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("got none for parameter 1"));
    }
    EXPECT_THROW(GradientReducer({{"computed", a * 2}}, group), Error);
  });
}

}  // namespace
}  // namespace muster::testing
