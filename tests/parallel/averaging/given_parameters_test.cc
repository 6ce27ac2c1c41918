// What averages a model refuses one whose module was replaced since: the ranks would average the
// old parameters, and each would train new ones of its own.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "muster/parallel/averaging/diloco.h"
#include "muster/parallel/averaging/gossip.h"
#include "muster/parallel/averaging/local_sgd.h"
#include "muster/parallel/averaging/parameter_client.h"
#include "muster/parallel/averaging/parameter_server.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

using Call = std::function<void()>;
using Averaging = std::function<Call(const GivenParameters&, ProcessGroup&)>;

struct BodyAndHeadImpl : torch::nn::Module {
  BodyAndHeadImpl() {
    body = register_module("body", torch::nn::Linear(2, 2));
    head = register_module("head", torch::nn::Linear(2, 3));
    for (at::Tensor& parameter : parameters())
      torch::nn::init::ones_(parameter);
  }
  torch::nn::Linear body = nullptr, head = nullptr;
};
TORCH_MODULE(BodyAndHead);

void replace_head(BodyAndHead& net) {
  net->head = net->replace_module("head", torch::nn::Linear(2, 4));
}

// The next call of what averages, after each way of averaging was made.
const std::map<std::string, Averaging>& ways_to_average() {
  static const std::map<std::string, Averaging> ways{
      {"LocalSGD",
       [](const GivenParameters& parameters, ProcessGroup& group) -> Call {
         const auto local = std::make_shared<LocalSGD>(parameters, group, LocalSGDOptions{});
         return [=] {
           local->average();
         };
       }},
      {"DiLoCo",
       [](const GivenParameters& parameters, ProcessGroup& group) -> Call {
         const auto outer = std::make_shared<DiLoCo>(parameters, group, DiLoCoOptions{.every = 1});
         return [=] {
           outer->step();
         };
       }},
      {"GossipAverage",
       [](const GivenParameters& parameters, ProcessGroup& group) -> Call {
         const auto gossip = std::make_shared<GossipAverage>(parameters, group);
         return [=] {
           gossip->step();
         };
       }},
  };
  return ways;
}

// The text of the next average of a model that was changed on all ranks, where there is one.
std::string refusal(const Averaging& way,
                    const std::function<GivenParameters(BodyAndHead&)>& give,
                    const std::function<void(BodyAndHead&)>& change) {
  std::vector<std::string> texts(2);
  run_ranks(2, [&](ProcessGroup& group) {
    BodyAndHead net;
    const Call average = way(give(net), group);
    average();
    change(net);
    texts[group.rank()] = test::message_of(average);
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

GivenParameters whole_model(BodyAndHead& net) {
  return *net;
}

TEST(GivenParameters, AReplacedModuleOfAModelIsNamed) {
  for (const auto& [name, way] : ways_to_average())
    EXPECT_EQ(refusal(way, whole_model, replace_head),
              name +
                  ": expected 'head.weight' of the model to stay the tensor that it was, got "
                  "another one; replace modules and parameters before the " +
                  name + " is made");
}

TEST(GivenParameters, AModuleThatAModelGotLaterIsNamed) {
  for (const auto& [name, way] : ways_to_average())
    EXPECT_THAT(
        refusal(way,
                whole_model,
                [](BodyAndHead& net) { net->register_module("adapter", torch::nn::Linear(2, 2)); }),
        HasSubstr("got 'adapter.weight' too; register it before the " + name));
}

// Nobody has the old head any more, so its average would reach nothing.
TEST(GivenParameters, AParameterOfAListThatNobodyElseHasIsSaidOnce) {
  for (const auto& [name, way] : ways_to_average()) {
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&, &way = way](ProcessGroup& group) {
      BodyAndHead net;
      const Call average = way(net->parameters(), group);
      average();
      replace_head(net);
      average();
      average();
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    const std::string warning =
        name + ": expected parameters that a model has, got one of shape [3, 2] that only the " +
        name + " has; if a module was replaced, make the " + name + " anew on all ranks";
    EXPECT_THAT(said, HasSubstr(warning));
    EXPECT_EQ(said.find(warning), said.rfind(warning)) << said;
  }
}

// Buffers are not averaged, so a program may replace them.
TEST(GivenParameters, ABufferThatIsReplacedIsNobodysConcern) {
  for (const auto& [name, way] : ways_to_average()) {
    run_ranks(2, [&, &name = name, &way = way](ProcessGroup& group) {
      BodyAndHead net;
      const auto options = torch::nn::BatchNorm1dOptions(2).affine(false);
      net->register_module("norm", torch::nn::BatchNorm1d(options));
      const Call average = way(*net, group);
      net->replace_module("norm", torch::nn::BatchNorm1d(options));
      EXPECT_NO_THROW(average()) << name;
    });
  }
}

// A view is a tensor of its own, in memory that others see. A tied weight is twice in the list.
TEST(GivenParameters, ViewsAndTiedWeightsAreTaken) {
  run_ranks(2, [](ProcessGroup& group) {
    const at::Tensor flat = torch::full({4}, 1.0), tied = torch::full({2}, 1.0);
    LocalSGD local({flat.narrow(0, 0, 2), tied, tied}, group, {.every = 1});
    flat.fill_(group.rank());
    tied.fill_(group.rank());
    local.step();
    EXPECT_EQ(flat[0].item<double>(), 0.5);
    EXPECT_EQ(tied[0].item<double>(), 0.5);
  });
}

TEST(GivenParameters, AWorkerAndAServerRefuseAReplacedModule) {
  run_ranks(2, [](ProcessGroup& group) {
    BodyAndHead net;
    const auto head_is_named = HasSubstr("expected 'head.weight' of the model to stay the tensor");
    if (keeps_parameters(group, {})) {
      ParameterServer server(*net, group, [](const auto& shard) {
        return std::make_unique<torch::optim::SGD>(shard, 1.0);
      });
      server.serve();
      replace_head(net);
      EXPECT_THAT(test::message_of([&] { server.serve(); }), head_is_named);
      return;
    }
    ParameterClient client(*net, group);
    client.pull();
    replace_head(net);
    EXPECT_THAT(test::message_of([&] { client.push(); }), head_is_named);
    EXPECT_THAT(test::message_of([&] { client.pull(); }), head_is_named);
    client.finish();
  });
}

}  // namespace
}  // namespace muster::testing
