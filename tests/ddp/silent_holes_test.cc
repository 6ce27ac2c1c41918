// The ways in which plain use of c10d::Reducer leaves gradients unreduced without a word. Each test
// shows the hole in plain use first, then that DistributedDataParallel throws or reduces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two layers, of which the second may be left out.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    register_module("used", used);
    register_module("sometimes", sometimes);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.fill_(0.5);
  }
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    return both ? sometimes(used(x)) : used(x);
  }
  torch::nn::Linear used{3, 3};
  torch::nn::Linear sometimes{3, 3};
};
TORCH_MODULE(TwoLayers);

at::Tensor input_of(int rank) {
  return torch::full({2, 3}, static_cast<float>(rank + 1));
}

// The mean over the ranks of the gradient of `used.weight`, from models of one process.
at::Tensor mean_gradient(int world_size, bool both) {
  auto sum = torch::zeros({3, 3});
  for (int rank = 0; rank < world_size; ++rank) {
    TwoLayers net;
    net->forward(input_of(rank), both).sum().backward();
    sum += net->used->weight.grad();
  }
  return sum / world_size;
}

std::unique_ptr<c10d::Reducer> plain_reducer(const std::vector<at::Tensor>& parameters,
                                             ProcessGroup& group) {
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {1 << 30}));
  return std::make_unique<c10d::Reducer>(parameters,
                                         buckets,
                                         group.c10d(),
                                         std::vector<bool>(parameters.size(), false),
                                         1 << 25,
                                         false,
                                         true,
                                         std::unordered_map<size_t, std::string>{},
                                         1 << 20,
                                         false,
                                         false,
                                         std::vector<int64_t>{});
}

bool reduced(const at::Tensor& gradient, const at::Tensor& mean) {
  return gradient.defined() && gradient.allclose(mean, 1e-5, 1e-7);
}

TEST(SilentHoles, UnusedParameters) {
  const auto mean = mean_gradient(2, false);
  run_ranks(2, [&](ProcessGroup& group) {
    TwoLayers net;
    auto reducer = plain_reducer(net->parameters(), group);
    reducer->prepare_for_forward();
    const auto output = net->forward(input_of(group.rank()), false);
    reducer->prepare_for_backward({});
    EXPECT_NO_THROW(output.sum().backward());
    EXPECT_FALSE(reduced(net->used->weight.grad(), mean))
        << "the hole is gone: plain use reduces now";
  });
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    const auto output = model(input_of(group.rank()), false);
    try {
      output.sum().backward();
      ADD_FAILURE() << "backward must not pass";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("sometimes.weight, sometimes.bias"),
                        HasSubstr("2 of 4"),
                        HasSubstr("find_unused_parameters")));
    }
  });
}

// A weight that a layer has by assignment leaves the registered one unused: it is told why.
TEST(SilentHoles, AParameterThatAnAssignedMemberReplacesIsNamed) {
  for (const bool finds : {false, true}) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      TwoLayers net;
      net->sometimes->weight = net->used->weight;
      DistributedDataParallel model(net, group, {.find_unused_parameters = finds});
      model(input_of(group.rank()), true).sum().backward();
      EXPECT_TRUE(net->used->weight.grad().defined());
    });
    const ::testing::Matcher<std::string> cause =
        AllOf(HasSubstr("got none for sometimes.weight (1 of 4, rank "),
              HasSubstr("the layer of 'sometimes.weight' computes with another tensor"));
    for (const auto& failure : failures)
      EXPECT_THAT(message_of(failure), finds ? ::testing::Matcher<std::string>("") : cause);
  }
}

TEST(SilentHoles, UnusedParametersAreReducedWhenAskedFor) {
  const auto mean = mean_gradient(2, false);
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      model(input_of(group.rank()), false).sum().backward();
      EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean));
      for (auto& parameter : model.parameters())
        parameter.mutable_grad().reset();
    }
  });
}

TEST(SilentHoles, StaticGraphsFirstBackward) {
  const auto mean = mean_gradient(2, true);
  run_ranks(2, [&](ProcessGroup& group) {
    TwoLayers net;
    auto reducer = plain_reducer(net->parameters(), group);
    reducer->set_static_graph();
    reducer->prepare_for_forward();
    const auto output = net->forward(input_of(group.rank()), true);
    reducer->prepare_for_backward({});
    output.sum().backward();
    EXPECT_NO_THROW(reducer->check_finalized());
    EXPECT_FALSE(reduced(net->used->weight.grad(), mean))
        << "the hole is gone: plain use reduces now";
  });
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      model(input_of(group.rank()), true).sum().backward();
      EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean)) << "step " << step;
      for (auto& parameter : model.parameters())
        parameter.mutable_grad().reset();
    }
  });
}

// A first window of several micro-batches would be learnt as a graph that gives each gradient
// several times, and no later window would be reduced.
TEST(SilentHoles, StaticGraphsFirstBackwardInsideNoSync) {
  const auto mean = mean_gradient(2, true);
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group, {.static_graph = true});
    {
      const auto guard = model.no_sync();
      EXPECT_THROW(model(input_of(group.rank()), true), Error);
    }
    for (int window = 0; window < 4; ++window) {
      if (window > 0) {
        const auto guard = model.no_sync();
        (model(input_of(group.rank()), true).sum() / 2).backward();
      }
      (model(input_of(group.rank()), true).sum() / (window > 0 ? 2 : 1)).backward();
      EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean)) << "window " << window;
      for (auto& parameter : model.parameters())
        parameter.mutable_grad().reset();
    }
  });
}

TEST(SilentHoles, StaticGraphAfterAnExceptionInItsFirstBackward) {
  const auto mean = mean_gradient(2, true);
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group, {.static_graph = true});
    auto hidden = model(input_of(group.rank()), true);
    const auto hook = model.module()->used->bias.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("on the way"); });
    EXPECT_THROW(hidden.sum().backward(), std::exception);
    model.module()->used->bias.remove_hook(hook);
    for (int step = 0; step < 3; ++step) {
      for (auto& parameter : model.parameters())
        parameter.mutable_grad().reset();
      model(input_of(group.rank()), true).sum().backward();
      EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean)) << "step " << step;
    }
  });
}

// Computes its layer's forward again in backward, in a graph of its own, as checkpointing does.
class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& input,
                            torch::nn::Linear layer) {
    context->save_for_backward({input});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer.get());
    return layer(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): saved data holds no pointers
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode grad(true);
    auto input = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({layer->forward(input)}, gradients);
    return {input.grad(), at::Tensor()};
  }
};

struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl() { register_module("net", net); }
  torch::Tensor forward(const torch::Tensor& x) {
    return Recomputed::apply(net->used(x), net->sometimes);
  }
  TwoLayers net;
};
TORCH_MODULE(Checkpointed);

TEST(SilentHoles, GradientsFromABackwardInside) {
  const auto mean = mean_gradient(2, true);
  for (const bool static_graph : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      DistributedDataParallel model(Checkpointed(), group, {.static_graph = static_graph});
      for (int step = 0; step < 3; ++step) {
        for (auto& parameter : model.parameters())
          parameter.mutable_grad().reset();
        model(input_of(group.rank())).sum().backward();
        EXPECT_TRUE(reduced(model.module()->net->used->weight.grad(), mean))
            << "step " << step << (static_graph ? ", static graph" : "");
      }
    });
  }
}

// The Reducer itself says "Expected to mark a variable ready only once" and names a function of
// Python's.
TEST(SilentHoles, GradientsFromABackwardInsideDoNotGoWithUnusedParameters) {
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(Checkpointed(), group, {.find_unused_parameters = true});
    try {
      model(input_of(group.rank())).sum().backward();
      ADD_FAILURE() << "backward must not pass";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("'net.sometimes."),
                        HasSubstr("checkpointed activations"),
                        HasSubstr("set static_graph"),
                        Not(HasSubstr("_set_static_graph"))));
    }
  });
}

// What the message says.
TEST(SilentHoles, GradientsFromABackwardInsideGoWithUnusedParametersInAStaticGraph) {
  const auto mean = mean_gradient(2, true);
  run_ranks(2, [&](ProcessGroup& group) {
    Checkpointed net;
    net->register_module("never", torch::nn::Linear(3, 3));
    DistributedDataParallel model(
        net, group, {.find_unused_parameters = true, .static_graph = true});
    for (int step = 0; step < 3; ++step) {
      for (auto& parameter : model.parameters())
        parameter.mutable_grad().reset();
      model(input_of(group.rank())).sum().backward();
      EXPECT_TRUE(reduced(net->net->used->weight.grad(), mean)) << "step " << step;
    }
  });
}

// What forward may return.
struct ManyImpl : torch::nn::Module {
  ManyImpl() { register_module("layer", layer); }
  std::vector<std::pair<std::optional<at::Tensor>, std::tuple<at::Tensor, int>>> forward(
      const at::Tensor& x) {
    return {{layer(x), {at::Tensor(), 1}}, {std::nullopt, {layer(x), 2}}};
  }
  torch::nn::Linear layer{3, 3};
};
TORCH_MODULE(Many);

struct Opaque {
  at::Tensor hidden;
};
struct OpaqueOutputImpl : torch::nn::Module {
  OpaqueOutputImpl() { register_module("layer", layer); }
  Opaque forward(const at::Tensor& x) { return {layer(x)}; }
  torch::nn::Linear layer{3, 3};
};
TORCH_MODULE(OpaqueOutput);

TEST(SilentHoles, OutputsAreFoundInWhateverHoldsThem) {
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel many(Many(), group, {.find_unused_parameters = true});
    auto output = many(input_of(group.rank()));
    (output[0].first->sum() + std::get<0>(output[1].second).sum()).backward();
    DistributedDataParallel opaque(OpaqueOutput(), group);
    opaque(input_of(group.rank())).hidden.sum().backward();
    DistributedDataParallel blind(OpaqueOutput(), group, {.find_unused_parameters = true});
    EXPECT_THROW(blind(input_of(group.rank())), Error);
  });
}

TEST(SilentHoles, ASecondBackwardAfterOneForward) {
  run_ranks(2, [&](ProcessGroup& group) {
    TwoLayers net;
    auto reducer = plain_reducer(net->parameters(), group);
    reducer->prepare_for_forward();
    const auto loss = net->forward(input_of(group.rank()), true).sum();
    reducer->prepare_for_backward({});
    loss.backward({}, /*retain_graph=*/true);
    for (auto& parameter : net->parameters())
      parameter.mutable_grad().reset();
    EXPECT_NO_THROW(loss.backward());
    EXPECT_FALSE(reduced(net->used->weight.grad(), mean_gradient(2, true)))
        << "the hole is gone: plain use reduces now";
  });
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    const auto loss = model(input_of(group.rank()), true).sum();
    loss.backward({}, /*retain_graph=*/true);
    try {
      loss.backward();
      ADD_FAILURE() << "the second backward must not pass";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("no forward"), HasSubstr("stay local")));
    }
  });
}

TEST(SilentHoles, AForwardThatWentPastTheWrapper) {
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    const auto loss = model.module()->forward(input_of(group.rank()), true).sum();
    EXPECT_THROW(loss.backward(), Error);
    model(input_of(group.rank()), true).sum().backward();  // and it goes on afterwards
  });
}

// A local forward announces its own backward alone.
TEST(SilentHoles, AForwardThatWentPastTheWrapperAfterALocalOne) {
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    {
      const auto guard = model.no_sync();
      const auto loss = model(input_of(group.rank()), true).sum();
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
    }
    const auto loss = model.module()->forward(input_of(group.rank()), true).sum();
    try {
      loss.backward();
      ADD_FAILURE() << "a backward past the wrapper must not pass";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("no forward"), HasSubstr("stay local")));
    }
    for (auto& parameter : model.parameters())
      parameter.mutable_grad().reset();
    model(input_of(group.rank()), true).sum().backward();
    EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean_gradient(2, true)));
  });
}

TEST(SilentHoles, LocalGradientsFromABackwardInsideOrOfAnOutputThatIsNotSeen) {
  run_ranks(1, [&](ProcessGroup& group) {
    DistributedDataParallel inside(Checkpointed(), group);
    DistributedDataParallel opaque(OpaqueOutput(), group);
    const auto first = inside.no_sync();
    const auto second = opaque.no_sync();
    for (int step = 0; step < 2; ++step) {
      EXPECT_NO_THROW(inside(input_of(0)).sum().backward());
      EXPECT_NO_THROW(opaque(input_of(0)).hidden.sum().backward());
    }
  });
}

// torch::autograd::grad with respect to the input, whose failure is handled.
TEST(SilentHoles, ABackwardAfterAnotherGraphThatThrew) {
  const auto mean = mean_gradient(2, true);
  for (const bool static_graph : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      DistributedDataParallel model(TwoLayers(), group, {.static_graph = static_graph});
      const auto input = input_of(group.rank()).requires_grad_();
      const auto output = model(input, true);
      bool fails = true;
      output.register_hook([&](const at::Tensor&) {
        if (fails)
          throw std::runtime_error("on the way");
      });
      EXPECT_THROW(torch::autograd::grad({output.sum()}, {input}, {}, /*retain_graph=*/true),
                   std::runtime_error);
      fails = false;
      const auto loss = output.sum();
      loss.backward({}, /*retain_graph=*/true);
      EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean));
      EXPECT_THROW(loss.backward(), Error) << "no forward has announced it";
    });
  }
}

// Half of the gradients have come; the rest would be taken for a graph of its own.
TEST(SilentHoles, ABackwardAgainAfterOneThatThrew) {
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group, {.static_graph = true});
    const auto loss = model(input_of(group.rank()), true).sum();
    auto& weight = model.module()->used->weight;
    const auto hook = weight.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("on the way"); });
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
    weight.remove_hook(hook);
    EXPECT_THROW(loss.backward(), Error);
  });
}

TEST(SilentHoles, OnlyParametersThatShouldHaveComeAreNamed) {
  const auto message_of_backward = [](const at::Tensor& loss,
                                      const std::vector<at::Tensor>& inputs) {
    try {
      loss.backward(
          {}, false, false, inputs.empty() ? std::nullopt : std::optional<at::TensorList>(inputs));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  run_ranks(2, [&](ProcessGroup& group) {
    TwoLayers net;
    net->register_module("never", torch::nn::Linear(3, 3));
    DistributedDataParallel learnt(net, group, {.static_graph = true});
    learnt(input_of(group.rank()), true).sum().backward();
    EXPECT_THAT(message_of_backward(learnt(input_of(group.rank()), false).sum(), {}),
                AllOf(HasSubstr("got none for sometimes.weight, sometimes.bias (2 of 4"),
                      Not(HasSubstr("never"))));
  });
  run_ranks(2, [&](ProcessGroup& group) {
    TwoLayers net;
    DistributedDataParallel finds(net, group, {.find_unused_parameters = true});
    EXPECT_THAT(
        message_of_backward(finds(input_of(group.rank()), false).sum(), {net->used->weight}),
        HasSubstr("got none for one or more of used.bias, sometimes.weight, sometimes.bias"));
  });
}

TEST(SilentHoles, TrainingGoesOnAfterAnExceptionInBackward) {
  const auto mean = mean_gradient(2, true);
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    EXPECT_THROW(model(input_of(group.rank()), false).sum().backward(), Error);
    for (int step = 0; step < 2; ++step) {
      for (auto& parameter : model.parameters())
        parameter.mutable_grad().reset();
      model(input_of(group.rank()), true).sum().backward();
      EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean)) << "step " << step;
    }
  });
}

TEST(SilentHoles, SeveralForwardsAndOneBackwardOfTheirSum) {
  const auto mean = mean_gradient(2, true);
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    const auto first = model(input_of(group.rank()), true).sum();
    const auto second = model(input_of(group.rank()), true).sum();
    ((first + second) / 2).backward();
    EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean));
  });
}

TEST(SilentHoles, AForwardWithoutBackwardIsFine) {
  const auto mean = mean_gradient(2, true);
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    model(input_of(group.rank()), true);
    {
      const torch::NoGradGuard no_grad;
      model(input_of(group.rank()), false);
    }
    model(input_of(group.rank()), true).sum().backward();
    EXPECT_TRUE(reduced(model.module()->used->weight.grad(), mean));
  });
}

// What a program prints that takes a step after each micro-batch as `step` does it. LibTorch's SGD
// does not count its writes into the parameters, Adam does.
template <class Optimizer>
std::string printed_by_steps(
    const std::function<void(DistributedDataParallel<TwoLayers>&, Optimizer&, int)>& step) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    Optimizer optimizer(model.parameters(), 0.1);
    for (int micro = 0; micro < 6; ++micro)
      step(model, optimizer, micro);
  });
  return ::testing::internal::GetCapturedStderr();
}

at::Tensor loss_of(DistributedDataParallel<TwoLayers>& model) {
  return model(input_of(model.reducer().group().rank()), true).square().mean();
}

// The condition of no_sync_if() is the wrong way round here: the last micro-batch is the local one.
template <class Optimizer>
void step_on_local_gradients(DistributedDataParallel<TwoLayers>& model,
                             Optimizer& optimizer,
                             int micro,
                             bool set_to_none) {
  {
    const auto guard = model.no_sync_if(micro % 2 == 1);
    loss_of(model).backward();
  }
  if (micro % 2 == 0)
    return;
  optimizer.step();
  optimizer.zero_grad(set_to_none);
}

TEST(SilentHoles, AStepOnGradientsOfNoSyncIsSaid) {
  using torch::optim::Adam;
  using torch::optim::SGD;
  for (const bool set_to_none : {true, false}) {
    const auto expected = AllOf(HasSubstr("'sometimes."),
                                HasSubstr("has changed after a backward inside no_sync()"),
                                HasSubstr("(rank 0)"),
                                HasSubstr("(rank 1)"));
    EXPECT_THAT(printed_by_steps<SGD>([&](auto& model, auto& optimizer, int micro) {
                  step_on_local_gradients(model, optimizer, micro, set_to_none);
                }),
                expected);
    EXPECT_THAT(printed_by_steps<Adam>([&](auto& model, auto& optimizer, int micro) {
                  step_on_local_gradients(model, optimizer, micro, set_to_none);
                }),
                expected);
  }
}

TEST(SilentHoles, StepsOnAveragedGradientsAndOfRanksThatTrainApartAreNot) {
  using torch::optim::SGD;
  const auto nothing_said = Not(HasSubstr("has changed after"));
  EXPECT_THAT(printed_by_steps<SGD>([](auto& model, auto& optimizer, int micro) {
                {
                  const auto guard = model.no_sync_if(micro % 2 == 0);
                  loss_of(model).backward();
                }
                if (micro % 2 == 0)
                  return;
                optimizer.step();
                optimizer.zero_grad();
              }),
              nothing_said);
  EXPECT_THAT(printed_by_steps<SGD>([](auto& model, auto& optimizer, int) {
                const auto guard = model.no_sync();  // over the step: local SGD
                loss_of(model).backward();
                optimizer.step();
                optimizer.zero_grad();
              }),
              nothing_said);
  EXPECT_THAT(printed_by_steps<SGD>([](auto& model, auto& optimizer, int) {
                const auto guard = model.no_sync();  // micro-batches that are dropped
                loss_of(model).backward();
                optimizer.zero_grad();
              }),
              nothing_said);
}

}  // namespace
}  // namespace muster::testing
