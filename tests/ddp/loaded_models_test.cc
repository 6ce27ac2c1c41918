// Values that a program puts into a wrapped model: torch::load and others give its parameters other
// memory, another type for a while, or other gradient accumulators. Training goes on as that of one
// process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

struct LoadedNetImpl : torch::nn::Module {
  explicit LoadedNetImpl(double value = 0.25) {
    register_module("first", first);
    register_module("second", second);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.fill_(value += 0.01);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{3, 4}, second{4, 2};
};
TORCH_MODULE(LoadedNet);

template <class Value>
std::string saved(const Value& value) {
  std::ostringstream stream;
  torch::save(value, stream);
  return stream.str();
}

template <class Value>
void load_from(const std::string& bytes, Value& value) {
  std::istringstream stream(bytes);
  torch::load(value, stream);
}

void load_values(LoadedNet& net) {
  load_from(saved(LoadedNet(0.1)), net);
}

// Copies the values in place, which gives the parameters nothing new.
void copy_values(LoadedNet& net) {
  const torch::NoGradGuard no_grad;
  const auto values = LoadedNet(0.1)->parameters();
  auto parameters = net->parameters();
  for (size_t i = 0; i < values.size(); ++i)
    parameters[i].copy_(values[i]);
}

// A way to put the values of LoadedNet(0.1) into a net.
struct Way {
  const char* name;
  std::function<void(LoadedNet&)> put;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"torch::load of the model", load_values},
      {"torch::load of each parameter",
       [](LoadedNet& net) {
         const auto values = LoadedNet(0.1)->parameters();
         auto parameters = net->parameters();
         for (size_t i = 0; i < values.size(); ++i)
           load_from(saved(values[i].detach()), parameters[i]);
       }},
      {"torch::load of one parameter",
       [](LoadedNet& net) {
         copy_values(net);
         load_from(saved(LoadedNet(0.1)->second->weight.detach()), net->second->weight);
       }},
      {"vector_to_parameters",
       [](LoadedNet& net) {
         const auto values = torch::nn::utils::parameters_to_vector(LoadedNet(0.1)->parameters());
         torch::nn::utils::vector_to_parameters(values, net->parameters());
       }},
      {"to() another type and back",
       [](LoadedNet& net) {
         copy_values(net);
         net->to(torch::kDouble);
         net->to(torch::kFloat);
       }},
      {"set_data",
       [](LoadedNet& net) {
         const auto values = LoadedNet(0.1)->parameters();
         auto parameters = net->parameters();
         for (size_t i = 0; i < values.size(); ++i)
           parameters[i].set_data(values[i].detach().clone());
       }},
      {"set_",
       [](LoadedNet& net) {
         const torch::NoGradGuard no_grad;
         copy_values(net);
         net->second->weight.set_(net->second->weight.detach().clone());
       }},
      {"replace_module",
       [](LoadedNet& net) {
         copy_values(net);
         const auto clone = std::dynamic_pointer_cast<torch::nn::LinearImpl>(net->second->clone());
         net->second = net->replace_module("second", torch::nn::Linear(clone));
       }},
  };
  return all;
}

struct Kind {
  const char* name;
  DdpOptions options;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"plain", {}},
      {"find_unused_parameters", {.find_unused_parameters = true}},
      {"static_graph", {.static_graph = true}},
      {"copies", {.gradient_as_bucket_view = false}},
  };
  return all;
}

at::Tensor joined_batch(int step) {
  return torch::cat({batch_of(0, step), batch_of(1, step)}) / 10;
}

at::Tensor share_of(int rank, int step) {
  return batch_of(rank, step) / 10;
}

using Batch = std::function<at::Tensor(int step)>;

// Two steps, new values, three steps. `forward` is the net's, or that of what wraps it.
template <class Model>
void train_loaded(LoadedNet& net, Model& model, const Way& way, const Batch& batch) {
  for (int step = 0; step < 5; ++step) {
    if (step == 2)
      way.put(net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    optimizer.zero_grad();
    square_loss(model->forward(batch(step))).backward();
    optimizer.step();
  }
}

void expect_near_to(const LoadedNet& expected,
                    const LoadedNet& got,
                    const std::string& what,
                    double apart = 1e-5) {
  const auto wanted = expected->parameters();
  const auto found = got->parameters();
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(found[i].allclose(wanted[i], apart, apart / 10)) << what << ", parameter " << i;
}

class LoadedModel : public ::testing::TestWithParam<const char*> {
 protected:
  InitOptions over() const { return {.backend = GetParam()}; }
};

TEST_P(LoadedModel, TrainsOnAsInOneProcess) {
  for (const Way& way : ways()) {
    LoadedNet alone;
    train_loaded(alone, alone, way, joined_batch);
    for (const Kind& kind : kinds()) {
      run_ranks(
          2,
          [&](ProcessGroup& group) {
            LoadedNet net;
            DistributedDataParallel model(net, group, kind.options);
            auto* wrapped = &model;
            train_loaded(net, wrapped, way, [&](int step) { return share_of(group.rank(), step); });
            expect_near_to(alone, net, std::string(way.name) + ", " + kind.name);
          },
          over());
    }
  }
}

// A hook's memory is of the values before. These hooks leave nothing of a gradient out, which has
// rank 1 here, so that one process is their measure; bf16 has 8 bits.
TEST_P(LoadedModel, TrainsOnWithHooksAndChecks) {
  struct Case {
    const char* name;
    std::function<DdpOptions()> options;
    double apart = 1e-5;
  };
  const std::vector<Case> cases = {
      {"bf16_compression", [] { return DdpOptions{.hook = bf16_compression()}; }, 1e-2},
      {"power_sgd",
       [] {
         return DdpOptions{.hook = power_sgd({.start_step = 1, .min_compression_rate = 0.1})};
       }},
      {"top_k", [] { return DdpOptions{.hook = top_k({.density = 1})}; }},
      {"verify_every", [] { return DdpOptions{.verify_every = 1}; }},
      {"automatic buckets", [] { return DdpOptions{.bucket_cap_mb = BucketCap::automatic()}; }},
  };
  const Way& way = ways().front();
  LoadedNet alone;
  train_loaded(alone, alone, way, joined_batch);
  for (const Case& kind : cases) {
    run_ranks(
        2,
        [&](ProcessGroup& group) {
          LoadedNet net;
          DistributedDataParallel model(net, group, kind.options());
          auto* wrapped = &model;
          train_loaded(net, wrapped, way, [&](int step) { return share_of(group.rank(), step); });
          expect_near_to(alone, net, kind.name, kind.apart);
          EXPECT_TRUE(same_everywhere(group, net->parameters())) << kind.name;
        },
        over());
  }
}

TEST_P(LoadedModel, BeforeTheFirstStepToo) {
  for (const Kind& kind : kinds()) {
    run_ranks(
        2,
        [&](ProcessGroup& group) {
          LoadedNet net;
          DistributedDataParallel model(net, group, kind.options);
          load_values(net);
          square_loss(model(share_of(group.rank(), 0))).backward();
          EXPECT_TRUE(same_everywhere(group, net->parameters())) << kind.name;
        },
        over());
  }
}

TEST_P(LoadedModel, OnOneRankOnlyIsAnErrorOnBoth) {
  for (const int rank_that_loads : {0, 1}) {
    const auto failures = failures_of_ranks(
        2,
        [&](ProcessGroup& group) {
          LoadedNet net;
          DistributedDataParallel model(net, group);
          for (int step = 0; step < 5; ++step) {
            if (step == 3 && group.rank() == rank_that_loads)
              load_values(net);
            drop_gradients(*net);
            square_loss(model(share_of(group.rank(), step))).backward();
          }
        },
        over());
    EXPECT_THAT(
        message_of(failures[static_cast<size_t>(rank_that_loads)]),
        AllOf(HasSubstr("expected every rank where parameters have changed"), HasSubstr("load")));
    EXPECT_THAT(message_of(failures[static_cast<size_t>(1 - rank_that_loads)]),
                AnyOf(HasSubstr("expected every rank at the end of a backward"),
                      HasSubstr("first rank that failed has the cause")));
  }
}

INSTANTIATE_TEST_SUITE_P(Over, LoadedModel, ::testing::Values("shm", "gloo"), [](const auto& info) {
  return std::string(info.param);
});

TEST(LoadedModels, OtherValuesOnOtherRanksBecomeRankZeros) {
  run_ranks(2, [](ProcessGroup& group) {
    LoadedNet net;
    DistributedDataParallel model(net, group);
    load_from(saved(LoadedNet(0.1 + group.rank())), net);
    square_loss(model(share_of(0, 0))).backward();
    expect_near_to(LoadedNet(0.1), net, "the first rank's");
  });
}

TEST(LoadedModels, IgnoredParametersKeepWhatEachRankHasLoaded) {
  run_ranks(2, [](ProcessGroup& group) {
    LoadedNet net;
    DistributedDataParallel model(net, group, {.ignored_parameters = {"first.weight"}});
    for (int step = 0; step < 2; ++step) {
      load_from(saved(LoadedNet(0.1 + group.rank())), net);
      drop_gradients(*net);
      square_loss(model(share_of(group.rank(), step))).backward();
      EXPECT_TRUE(net->first->weight.equal(LoadedNet(0.1 + group.rank())->first->weight));
      EXPECT_TRUE(net->second->weight.equal(LoadedNet(0.1)->second->weight)) << "the first rank's";
    }
  });
}

TEST(LoadedModels, ALoadBetweenTwoMicroBatchesKeepsTheFirstsGradients) {
  run_ranks(2, [](ProcessGroup& group) {
    LoadedNet net, before, after;
    load_values(after);
    const auto mean_of = [&](LoadedNet& one, int64_t step) {
      return mean_gradients(
          group, square_loss(one(share_of(group.rank(), step))), one->parameters());
    };
    std::vector<at::Tensor> expected = mean_of(before, 1);
    const std::vector<at::Tensor> of_second = mean_of(after, 2);
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = expected[i] + of_second[i];
    DistributedDataParallel model(net, group);
    {
      const auto guard = model.no_sync();
      square_loss(model(share_of(group.rank(), 1))).backward();
    }
    load_values(net);
    square_loss(model(share_of(group.rank(), 2))).backward();
    expect_gradients(net->parameters(), expected);
  });
}

TEST(LoadedModels, MicroBatchesInsideNoSyncAreReducedWithTheLast) {
  run_ranks(2, [](ProcessGroup& group) {
    LoadedNet net, same(0.1);
    DistributedDataParallel model(net, group);
    square_loss(model(share_of(group.rank(), 0))).backward();
    drop_gradients(*net);
    load_values(net);
    const auto mean = mean_gradients(
        group,
        square_loss(same(share_of(group.rank(), 1))) + square_loss(same(share_of(group.rank(), 2))),
        same->parameters());
    {
      const auto guard = model.no_sync();
      square_loss(model(share_of(group.rank(), 1))).backward();
    }
    square_loss(model(share_of(group.rank(), 2))).backward();
    expect_gradients(net->parameters(), mean);
  });
}

TEST(LoadedModels, AListOfTensorsIsReducedToo) {
  run_ranks(2, [](ProcessGroup& group) {
    auto weight = torch::ones({3, 2}).requires_grad_();
    GradientReducer reducer({{"weight", weight}}, group);
    load_from(saved(torch::full({3, 2}, 0.5)), weight);
    reducer.forward([&] { return batch_of(group.rank()).mm(weight); }).sum().backward();
    EXPECT_TRUE(same_everywhere(group, {weight}));
  });
}

TEST(LoadedModels, FrozenWhileTheyAreLoadedAndUnfrozenAfterwards) {
  for (const Kind& kind : kinds()) {
    if (kind.options.static_graph)
      continue;
    run_ranks(2, [&](ProcessGroup& group) {
      LoadedNet net;
      DistributedDataParallel model(net, group, kind.options);
      const auto train_first = [&](bool on) {
        for (auto& parameter : net->first->parameters())
          parameter.set_requires_grad(on);
      };
      for (int step = 0; step < 4; ++step) {
        if (step == 1)
          train_first(false);
        if (step == 2)
          load_values(net);
        if (step == 3)
          train_first(true);
        drop_gradients(*net);
        square_loss(model(share_of(group.rank(), step))).backward();
        EXPECT_TRUE(same_everywhere(
            group, step == 0 || step == 3 ? net->parameters() : net->second->parameters()))
            << kind.name << ", step " << step;
      }
    });
  }
}

// A module that gives its weight other memory in each forward, as one that keeps it elsewhere.
struct LoadsInForwardImpl : torch::nn::Module {
  LoadsInForwardImpl() { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& x) {
    load_from(saved(layer->weight.detach().clone()), layer->weight);
    return layer(x);
  }
  torch::nn::Linear layer{3, 2};
};
TORCH_MODULE(LoadsInForward);

struct Hidden {
  at::Tensor output;
};
struct LoadsAndHidesImpl : LoadsInForwardImpl {
  Hidden forward(const at::Tensor& x) { return {LoadsInForwardImpl::forward(x)}; }
};
TORCH_MODULE(LoadsAndHides);

void expect_refused(const std::function<void()>& backward, const char* what) {
  try {
    backward();
    ADD_FAILURE() << "a gradient that stays local must not pass: " << what;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'layer.weight'"),
                      HasSubstr("stay local"),
                      HasSubstr("torch::load"),
                      HasSubstr("before forward")));
  }
}

TEST(LoadedModels, AGradientThatTheReducerCannotSeeIsAnError) {
  for (const Kind& kind : kinds()) {
    run_ranks(2, [&](ProcessGroup& group) {
      DistributedDataParallel model(LoadsInForward(), group, kind.options);
      expect_refused([&] { model(batch_of(group.rank())).sum().backward(); }, kind.name);
    });
  }
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(LoadsAndHides(), group);
    expect_refused([&] { model(batch_of(group.rank())).output.sum().backward(); }, "no outputs");
  });
}

TEST(LoadedModels, AForwardThatWentPastTheWrapperIsRefusedAsBefore) {
  run_ranks(2, [](ProcessGroup& group) {
    LoadedNet net;
    DistributedDataParallel model(net, group);
    load_values(net);
    EXPECT_THROW(square_loss(net(share_of(group.rank(), 0))).backward(), Error);
  });
}

// A convolution's weight is put into another layout after wrapping.
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    register_module("conv", conv);
    const torch::NoGradGuard no_grad;
    conv->weight.copy_(torch::linspace(-1, 1, conv->weight.numel()).view_as(conv->weight));
    conv->bias.fill_(0.1);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(conv(x)); }
  void lay_out(at::MemoryFormat format) {
    conv->weight.set_data(conv->weight.detach().contiguous(format));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 4, 3)};
};
TORCH_MODULE(ConvNet);

at::Tensor picture_of(int rank, int step) {
  return torch::sin(torch::arange(3 * 5 * 5).view({1, 3, 5, 5}) * (0.1 + 0.3 * rank + 0.2 * step));
}

TEST(LoadedModels, ALayoutThatAllRanksChangeIsTrainedAsInOneProcess) {
  ConvNet alone;
  std::vector<at::Tensor> expected;
  for (int step = 0; step < 4; ++step) {
    drop_gradients(*alone);
    square_loss(alone(torch::cat({picture_of(0, step), picture_of(1, step)}))).backward();
    expected.push_back(alone->conv->weight.grad().clone());
  }
  for (const int changed_at : {0, 1, 2}) {
    run_ranks(2, [&](ProcessGroup& group) {
      ConvNet net;
      DistributedDataParallel model(net, group);
      for (int step = 0; step < 4; ++step) {
        if (step == changed_at)
          net->lay_out(at::MemoryFormat::ChannelsLast);
        drop_gradients(*net);
        square_loss(model(picture_of(group.rank(), step))).backward();
        expect_gradients({net->conv->weight}, {expected[static_cast<size_t>(step)]});
      }
    });
  }
}

TEST(LoadedModels, ALayoutThatOneRankChangesIsAnErrorOnBoth) {
  for (const int changed_at : {0, 1, 3}) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      ConvNet net;
      DistributedDataParallel model(net, group);
      for (int step = 0; step < 5; ++step) {
        if (step == changed_at && group.rank() == 1)
          net->lay_out(at::MemoryFormat::ChannelsLast);
        drop_gradients(*net);
        square_loss(model(picture_of(group.rank(), step))).backward();
      }
    });
    EXPECT_THAT(message_of(failures[1]),
                HasSubstr("expected every rank where parameters have changed"))
        << changed_at;
    EXPECT_NE(message_of(failures[0]), "") << changed_at;
  }
}

}  // namespace
}  // namespace muster::testing
