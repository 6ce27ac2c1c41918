// What users change while they train: which parameters are trained, which branch is used, and
// whether a backward takes place at all. Ranks must stay together, or be told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ChangingModel : public ::testing::TestWithParam<const char*> {
 protected:
  InitOptions over() const { return {.backend = GetParam()}; }
};

TEST_P(ChangingModel, UnfreezingAfterWrappingIsReduced) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        for (auto& parameter : net[0]->parameters())
          parameter.set_requires_grad(false);
        DistributedDataParallel model(net, group);
        model(batch_of(group.rank())).sum().backward();
        for (auto& parameter : net[0]->parameters())
          parameter.set_requires_grad(true);
        for (int step = 1; step < 4; ++step) {
          drop_gradients(*net);
          model(batch_of(group.rank(), step)).sum().backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters())) << "step " << step;
        }
      },
      over());
}

TEST_P(ChangingModel, AParameterRegisteredAfterWrappingIsRankZerosAndIsReduced) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        model(batch_of(group.rank())).sum().backward();
        torch::nn::Linear head(2, 2);
        {
          const torch::NoGradGuard no_grad;
          head->weight.fill_(group.rank() + 1);
        }
        net->push_back(head);
        drop_gradients(*net);
        model(batch_of(group.rank())).sum().backward();
        EXPECT_EQ(head->weight[0][0].item<float>(), 1);
        EXPECT_TRUE(same_everywhere(group, net->parameters()));
      },
      over());
}

TEST_P(ChangingModel, AFrozenParameterRegisteredAfterWrappingIsRankZeros) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        torch::nn::Linear head(2, 2);
        head->weight.set_data(torch::full({2, 2}, static_cast<float>(group.rank() + 1)));
        for (auto& parameter : head->parameters())
          parameter.set_requires_grad(false);
        net->push_back(head);
        model(batch_of(group.rank())).sum().backward();
        EXPECT_EQ(head->weight[0][0].item<float>(), 1);
        EXPECT_TRUE(same_everywhere(group, model.module()[0]->parameters()));
      },
      over());
}

TEST_P(ChangingModel, AParameterThatHasGrownIsRankZerosAndIsReduced) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        torch::nn::Linear net(3, 2);
        DistributedDataParallel model(net, group);
        model(batch_of(group.rank())).sum().backward();
        drop_gradients(*net);
        net->weight.set_data(torch::full({4, 3}, static_cast<float>(group.rank() + 1)));
        net->bias.set_data(torch::full({4}, static_cast<float>(group.rank() + 1)));
        model(batch_of(group.rank())).sum().backward();
        EXPECT_EQ(net->weight[3][2].item<float>(), 1);
        EXPECT_EQ(net->bias[3].item<float>(), 1);
        EXPECT_TRUE(same_everywhere(group, net->parameters()));
      },
      over());
}

TEST_P(ChangingModel, FrozenDifferentlyOnTheRanksIsAnErrorOnBoth) {
  const auto failures = failures_of_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        model(batch_of(group.rank())).sum().backward();
        net[group.rank()]->as<torch::nn::Linear>()->bias.set_requires_grad(false);
        drop_gradients(*net);
        model(batch_of(group.rank())).sum().backward();
      },
      over());
  for (const auto& failure : failures) {
    EXPECT_THAT(message_of(failure),
                AllOf(HasSubstr("(frozen)"), Not(HasSubstr("expected every rank"))));
  }
}

// Before the buckets are built anew, with their own broadcast, and after.
TEST_P(ChangingModel, FrozenOnOneRankOnlyIsAnErrorOnBoth) {
  for (const int frozen_after : {1, 3}) {
    for (const int rank_that_freezes : {0, 1}) {
      const auto failures = failures_of_ranks(
          2,
          [&](ProcessGroup& group) {
            auto net = two_layers();
            DistributedDataParallel model(net, group);
            for (int step = 0; step < 5; ++step) {
              if (step == frozen_after && group.rank() == rank_that_freezes)
                net[0]->as<torch::nn::Linear>()->bias.set_requires_grad(false);
              drop_gradients(*net);
              model(batch_of(group.rank())).sum().backward();
            }
          },
          over());
      EXPECT_THAT(message_of(failures[static_cast<size_t>(rank_that_freezes)]),
                  HasSubstr("expected every rank where parameters have changed"));
      const std::string other = message_of(failures[static_cast<size_t>(1 - rank_that_freezes)]);
      if (frozen_after == 1) {
        EXPECT_THAT(other, HasSubstr("expected every rank before its buckets are built anew"));
      } else {
        EXPECT_THAT(other,
                    AnyOf(HasSubstr("expected every rank at the end of a backward"),
                          HasSubstr("first rank that failed has the cause")));
      }
    }
  }
}

// The micro-batches of a layer that is frozen before they are reduced.
TEST_P(ChangingModel, GradientsOfWhatWasFrozenAreNotAppliedLocally) {
  ::testing::internal::CaptureStderr();
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        {
          const auto guard = model.no_sync();
          model(batch_of(group.rank())).sum().backward();
        }
        for (auto& parameter : net[0]->parameters())
          parameter.set_requires_grad(false);
        model(batch_of(group.rank())).sum().backward();
        optimizer.step();
        EXPECT_FALSE(net[0]->as<torch::nn::Linear>()->weight.grad().defined());
        EXPECT_TRUE(same_everywhere(group, net[1]->parameters()));
      },
      over());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("got '0.weight', '0.bias' frozen, whose gradients are dropped (rank 0)"));
}

// A GAN: the discriminator is frozen whole while the generator trains through it.
TEST_P(ChangingModel, ADiscriminatorThatIsFrozenWhileItsGeneratorTrains) {
  for (const bool find_unused : {false, true}) {
    run_ranks(
        2,
        [&](ProcessGroup& group) {
          torch::nn::Linear generator(3, 3), discriminator(3, 1);
          const DdpOptions options{.find_unused_parameters = find_unused};
          DistributedDataParallel make(generator, group, options);
          DistributedDataParallel judge(discriminator, group, options);
          const auto train_judge = [&](bool on) {
            for (auto& parameter : discriminator->parameters())
              parameter.set_requires_grad(on);
          };
          for (int step = 0; step < 4; ++step) {
            drop_gradients(*generator);
            drop_gradients(*discriminator);
            train_judge(true);
            const auto real = judge(batch_of(group.rank(), step));
            const auto fake = judge(make(batch_of(group.rank(), step)).detach());
            (real - fake).sum().backward();
            EXPECT_TRUE(same_everywhere(group, discriminator->parameters())) << "step " << step;
            train_judge(false);
            judge(make(batch_of(group.rank(), step))).sum().backward();
            EXPECT_TRUE(same_everywhere(group, generator->parameters())) << "step " << step;
          }
        },
        over());
  }
}

TEST_P(ChangingModel, TwoForwardsOfAModelWithBuffersBeforeOneBackward) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        torch::nn::Sequential net(
            torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 3; ++step) {
          const auto real = (torch::arange(12).view({4, 3}) * (1.5 + group.rank() + step)).sin();
          const auto fake = real.cos();
          const auto loss = [&](auto& of) {
            return (of->forward(real) - of->forward(fake)).square().mean();
          };
          const auto mean = mean_gradients(group, loss(net), net->parameters());
          auto* wrapped = &model;
          loss(wrapped).backward();
          expect_gradients(net->parameters(), mean);
          drop_gradients(*net);
        }
      },
      over());
}

INSTANTIATE_TEST_SUITE_P(Over,
                         ChangingModel,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// Every rank fails after some of its buckets are under way.
TEST(ChangingModels, AnExceptionInBackwardLeavesNothingToTheNextStep) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = two_layers();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 0.00001});  // a bucket a parameter
    for (int step = 0; step < 2; ++step) {
      model(batch_of(group.rank(), step)).sum().backward();
      drop_gradients(*net);
    }
    auto first = net[0]->as<torch::nn::Linear>();
    const auto hook = first->weight.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("on the way"); });
    EXPECT_THROW(model(batch_of(group.rank())).sum().backward(), std::runtime_error);
    first->weight.remove_hook(hook);
    const auto loss = model(batch_of(group.rank())).sum();
    for (const auto& parameter : net->parameters())
      EXPECT_FALSE(parameter.grad().defined());
    loss.backward();
    EXPECT_TRUE(same_everywhere(group, net->parameters()));
  });
}

// With some parameters ready and with none, before the buckets are built anew and after.
TEST(ChangingModels, NoSyncAfterABackwardThatHasFailed) {
  for (const bool some_ready : {false, true}) {
    for (const int good_steps : {0, 2}) {
      run_ranks(2, [&](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < good_steps; ++step) {
          model(batch_of(group.rank(), step)).sum().backward();
          drop_gradients(*net);
        }
        const auto fail = [](const at::Tensor&) -> at::Tensor {
          throw std::runtime_error("on the way");
        };
        const auto output = model(batch_of(group.rank()));
        auto& weight = net[0]->as<torch::nn::Linear>()->weight;
        const auto hook = some_ready ? weight.register_hook(fail) : output.register_hook(fail);
        EXPECT_THROW(output.sum().backward(), std::runtime_error);
        if (some_ready)
          weight.remove_hook(hook);
        const auto sum = [&](auto& of) {
          return of->forward(batch_of(group.rank())).sum() +
                 of->forward(batch_of(group.rank(), 1)).sum();
        };
        const auto mean = mean_gradients(group, sum(net), net->parameters());
        {
          const auto guard = model.no_sync();
          model(batch_of(group.rank())).sum().backward();
          EXPECT_FALSE(same_everywhere(group, {weight})) << "reduced inside no_sync";
        }
        model(batch_of(group.rank(), 1)).sum().backward();
        expect_gradients(net->parameters(), mean);
      });
    }
  }
}

TEST(ChangingModels, StridesAreComparedWithTheRestOfTheModel) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    torch::nn::Conv2d net(torch::nn::Conv2dOptions(3, 4, 3));
    if (group.rank() == 1) {
      const torch::NoGradGuard no_grad;
      net->weight.set_data(net->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    DistributedDataParallel model(net, group);
  });
  for (const auto& failure : failures) {
    EXPECT_THAT(message_of(failure),
                AllOf(HasSubstr("weight: Float [4, 3, 3, 3]' on rank 0"),
                      HasSubstr("strides [27, 1, 9, 3]")));
  }
}

// Returns one of its parameters as it is, beside its result.
struct ReturnsALeafImpl : torch::nn::Module {
  ReturnsALeafImpl() { register_module("layer", layer); }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {layer(x), layer->weight};
  }
  torch::nn::Linear layer{3, 3};
};
TORCH_MODULE(ReturnsALeaf);

TEST(ChangingModels, ALeafThatForwardReturnsGathersNoHooks) {
  run_ranks(1, [](ProcessGroup& group) {
    ReturnsALeaf net;
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 3; ++step)
      model(batch_of(0)).first.sum().backward();
    EXPECT_TRUE(torch::autograd::impl::hooks(net->layer->weight).empty());
  });
}

// A result of the user's own type.
struct Detection {
  at::Tensor boxes, scores;
  auto tensors() { return std::tie(boxes, scores); }
};
struct DetectorImpl : torch::nn::Module {
  DetectorImpl() {
    register_module("boxes", boxes);
    register_module("scores", scores);
  }
  Detection forward(const at::Tensor& x) { return {boxes(x), scores(x)}; }
  torch::nn::Linear boxes{3, 4}, scores{3, 1};
};
TORCH_MODULE(Detector);

TEST(ChangingModels, AResultOfTheUsersTypeShowsItsTensors) {
  run_ranks(2, [](ProcessGroup& group) {
    Detector net;
    DistributedDataParallel model(net, group, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {  // the loss leaves the boxes out
      model(batch_of(group.rank(), step)).scores.sum().backward();
      EXPECT_TRUE(same_everywhere(group, net->scores->parameters()));
      EXPECT_FALSE(net->boxes->weight.grad().defined());
      drop_gradients(*net);
    }
  });
}

// What hands out its tensors as copies is seen all the same.
struct Copies {
  std::vector<at::Tensor> tensors() const { return {kept}; }
  at::Tensor kept;
};
template <class Result>
struct ReturnsImpl : torch::nn::Module {
  ReturnsImpl() { register_module("layer", layer); }
  Result forward(const at::Tensor& x) {
    if constexpr (std::is_same_v<Result, Copies>) {
      return {layer(x)};
    } else {
      Result result;
      result.push_back(layer(x));
      return result;
    }
  }
  torch::nn::Linear layer{3, 3};
};

template <class Result>
void train_one_that_returns(const std::function<at::Tensor(const Result&)>& first) {
  run_ranks(2, [&](ProcessGroup& group) {
    const auto net = std::make_shared<ReturnsImpl<Result>>();
    DistributedDataParallel model(net, group, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      first(model(batch_of(group.rank(), step))).sum().backward();
      EXPECT_TRUE(same_everywhere(group, net->parameters()));
      drop_gradients(*net);
    }
  });
}

TEST(ChangingModels, ResultsThatHandOutCopies) {
  train_one_that_returns<Copies>([](const Copies& result) { return result.kept; });
  using List = c10::List<at::Tensor>;
  train_one_that_returns<List>([](const List& result) { return result.get(0); });
}

TEST(ChangingModels, AWrapperThatIsGoneBeforeBackwardIsAnError) {
  run_ranks(1, [](ProcessGroup& group) {
    auto net = two_layers();
    at::Tensor loss;
    {
      DistributedDataParallel model(net, group);
      loss = model(batch_of(0)).sum();
    }
    EXPECT_THROW(loss.backward(), Error);
  });
}

}  // namespace
}  // namespace muster::testing
