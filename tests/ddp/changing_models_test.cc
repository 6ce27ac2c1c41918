// What users change while they train: which parameters are trained, which branch is used, and whether a
// backward takes place at all. Ranks must stay together, or be told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

torch::nn::Sequential two_layers() {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.fill_(0.25);
  return net;
}

at::Tensor batch_of(int rank, int step = 0) {
  return torch::full({2, 3}, static_cast<float>(1 + rank + 10 * step));
}

void drop_gradients(const torch::nn::Module& net) {
  for (auto& parameter : net.parameters()) parameter.mutable_grad().reset();
}

// Whether all ranks have the same gradients, and these are there.
bool same_everywhere(ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  std::string mine;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) return false;
    const auto gradient = parameter.grad().contiguous();
    mine.append(static_cast<const char*>(gradient.const_data_ptr()), gradient.nbytes());
  }
  const auto all = group.all_gather_bytes(mine);
  return std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all[0]; });
}

class ChangingModel : public ::testing::TestWithParam<const char*> {
 protected:
  InitOptions over() const { return {.backend = GetParam()}; }
};

TEST_P(ChangingModel, UnfreezingAfterWrappingIsReduced) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        for (auto& parameter : net[0]->parameters()) parameter.set_requires_grad(false);
        DistributedDataParallel model(net, group);
        model(batch_of(group.rank())).sum().backward();
        for (auto& parameter : net[0]->parameters()) parameter.set_requires_grad(true);
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
  for (const auto& failure : failures) EXPECT_THAT(message_of(failure), HasSubstr("(frozen)"));
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
                  HasSubstr("alike on all ranks, got a change on rank"));
      EXPECT_THAT(message_of(failures[static_cast<size_t>(1 - rank_that_freezes)]),
                  AnyOf(HasSubstr("same call on every rank"), HasSubstr("left the group")));
    }
  }
}

// The micro-batches of a layer that is frozen before they are reduced.
TEST_P(ChangingModel, GradientsOfWhatWasFrozenAreNotAppliedLocally) {
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
        for (auto& parameter : net[0]->parameters()) parameter.set_requires_grad(false);
        model(batch_of(group.rank())).sum().backward();
        optimizer.step();
        EXPECT_FALSE(net[0]->as<torch::nn::Linear>()->weight.grad().defined());
        EXPECT_TRUE(same_everywhere(group, net[1]->parameters()));
      },
      over());
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
            for (auto& parameter : discriminator->parameters()) parameter.set_requires_grad(on);
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

// One rank leaves out a backward (`if (isnan(loss)) continue;`), the other does so later: as many reductions
// on both. `keep` gets every loss, before it is looked at.
std::vector<std::exception_ptr> failures_of_skipping(
    const InitOptions& over, bool with_buffers, const std::function<void(int, const at::Tensor&)>& keep) {
  return failures_of_ranks(
      2,
      [&](ProcessGroup& group) {
        auto net = two_layers();
        if (with_buffers) net->push_back(torch::nn::BatchNorm1d(2));
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 6; ++step) {
          const auto loss = model(batch_of(group.rank(), step)).sum();
          keep(group.rank(), loss);
          if (step == (group.rank() == 0 ? 2 : 4)) continue;
          loss.backward();
          EXPECT_LT(step, 3) << "the first backward of different steps must not pass";
          drop_gradients(*net);
        }
      },
      over);
}

TEST_P(ChangingModel, ASkippedBackwardIsFoundWithinTheStep) {
  std::vector<at::Tensor> last(2), sum(2, torch::zeros({}));
  const std::vector<std::function<void(int, const at::Tensor&)>> ways{
      [](int, const at::Tensor&) {},
      [&](int rank, const at::Tensor& loss) { last[static_cast<size_t>(rank)] = loss; },
      [&](int rank, const at::Tensor& loss) {
        at::Tensor& mine = sum[static_cast<size_t>(rank)];
        mine = mine.detach() + loss;
      }};
  for (const auto& keep : ways) {
    for (const auto& failure : failures_of_skipping(over(), false, keep)) {
      EXPECT_THAT(message_of(failure), AllOf(HasSubstr("3 backwards and 1 forwards without one on rank 0"),
                                             HasSubstr("3 backwards and 0 forwards without one on rank 1"),
                                             HasSubstr("gradients of different steps")));
    }
  }
}

// The rank that goes on broadcasts buffers, while its peer waits at the end of its backward.
TEST_P(ChangingModel, ASkippedBackwardOfAModelWithBuffersIsAnError) {
  for (const auto& failure : failures_of_skipping(over(), true, [](int, const at::Tensor&) {})) {
    EXPECT_THAT(message_of(failure),
                AnyOf(HasSubstr("same call on every rank"), HasSubstr("left the group")));
  }
}

TEST_P(ChangingModel, ABackwardThatFailsOnOneRankOnlyIsAnErrorOnBoth) {
  const auto failures = failures_of_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group, {.bucket_cap_mb = 0.00001});
        for (int step = 0; step < 4; ++step) {
          auto& weight = net[0]->as<torch::nn::Linear>()->weight;
          const auto hook = weight.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
            if (step == 2 && group.rank() == 0) throw std::runtime_error("on the way");
            return gradient;
          });
          try {
            model(batch_of(group.rank(), step)).sum().backward();
          } catch (const std::runtime_error& error) {
            if (std::string(error.what()).find("on the way") == std::string::npos) throw;
          }
          weight.remove_hook(hook);
          drop_gradients(*net);
        }
      },
      over());
  EXPECT_THAT(message_of(failures[0]), HasSubstr("expected every rank after a backward that has failed"));
  EXPECT_THAT(message_of(failures[1]),
              AnyOf(HasSubstr("same call on every rank"), HasSubstr("left the group")));
}

// Rank 0 keeps what it has generated; the forward that made it has no backward on any rank.
TEST_P(ChangingModel, WhatARankKeepsChangesNothing) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        torch::nn::Linear net(3, 3);
        DistributedDataParallel model(net, group);
        std::vector<at::Tensor> pictures;
        for (int step = 0; step < 4; ++step) {
          const auto fake = model(batch_of(group.rank(), step));
          if (group.rank() == 0) pictures.push_back(fake);
          model(batch_of(group.rank(), step)).sum().backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

TEST_P(ChangingModel, RolloutsOfDifferentLengthsWhereStepsAreNotChecked) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group, {.check_steps = false});
        for (int step = 0; step < 3; ++step) {
          for (int i = 0; i <= group.rank(); ++i) model(batch_of(i));
          model(batch_of(group.rank(), step)).sum().backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

TEST_P(ChangingModel, ABackwardThatAllRanksSkipIsFine) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 5; ++step) {
          const auto loss = model(batch_of(group.rank(), step)).sum();
          if (step == 2) continue;
          loss.backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

// Pictures of different numbers of objects: as many forwards as there are, and one backward.
TEST_P(ChangingModel, AsManyForwardsAsARankNeedsBeforeOneBackward) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 4; ++step) {
          auto loss = torch::zeros({});
          for (int crop = 0; crop <= (step + group.rank()) % 3; ++crop) {
            loss = loss + model(batch_of(group.rank(), crop)).sum();
          }
          loss.backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters()));
          drop_gradients(*net);
        }
      },
      over());
}

TEST_P(ChangingModel, EvaluationOnOneRankIsNoSkippedStep) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        auto net = two_layers();
        DistributedDataParallel model(net, group);
        for (int step = 0; step < 3; ++step) {
          model(batch_of(group.rank(), step)).sum().backward();
          drop_gradients(*net);
          if (group.rank() != 0) continue;
          {
            const torch::NoGradGuard no_grad;
            model(batch_of(0));
          }
          net->eval();
          model(batch_of(0));
          net->train();
        }
      },
      over());
}

INSTANTIATE_TEST_SUITE_P(Over, ChangingModel, ::testing::Values("shm", "gloo"),
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
    for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    loss.backward();
    EXPECT_TRUE(same_everywhere(group, net->parameters()));
  });
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
    EXPECT_THAT(message_of(failure), AllOf(HasSubstr("weight: Float [4, 3, 3, 3]' on rank 0"),
                                           HasSubstr("strides [27, 1, 9, 3]")));
  }
}

// Returns one of its parameters as it is, beside its result.
struct ReturnsALeafImpl : torch::nn::Module {
  ReturnsALeafImpl() { register_module("layer", layer); }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {layer(x), layer->weight}; }
  torch::nn::Linear layer{3, 3};
};
TORCH_MODULE(ReturnsALeaf);

TEST(ChangingModels, ALeafThatForwardReturnsGathersNoHooks) {
  run_ranks(1, [](ProcessGroup& group) {
    ReturnsALeaf net;
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 3; ++step) model(batch_of(0)).first.sum().backward();
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

TEST(ChangingModels, TwoWrappedModelsMayShareAnEncoder) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear encoder(3, 3), first(3, 2), second(3, 2);
    const auto with = [&](const torch::nn::Linear& head) { return torch::nn::Sequential(encoder, head); };
    DistributedDataParallel one(with(first), group), other(with(second), group);
    for (int step = 0; step < 3; ++step) {
      for (auto* model : {&one, &other}) {
        (*model)(batch_of(group.rank(), step)).sum().backward();
        EXPECT_TRUE(same_everywhere(group, model->parameters()));
        drop_gradients(*model->module());
      }
    }
  });
}

TEST(ChangingModels, AParameterThatHasGrown) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear net(3, 2);
    DistributedDataParallel model(net, group);
    model(batch_of(group.rank())).sum().backward();
    drop_gradients(*net);
    net->weight.set_data(torch::ones({4, 3}));
    net->bias.set_data(torch::ones({4}));
    model(batch_of(group.rank())).sum().backward();
    EXPECT_TRUE(same_everywhere(group, net->parameters()));
  });
}

TEST(ChangingModels, ASharedWeightIsOneParameter) {
  run_ranks(1, [](ProcessGroup& group) {
    torch::nn::Linear layer(3, 3);
    torch::nn::Sequential net(layer, layer);
    DistributedDataParallel model(net, group);
    EXPECT_EQ(net->parameters().size(), 4U);
    EXPECT_EQ(model.parameters().size(), 2U);
  });
}

}  // namespace
}  // namespace muster::testing
