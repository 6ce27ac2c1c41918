#include "muster/checkpoint/load_weights.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/checkpoint/files/weight_files.h"
#include "muster/checkpoint/safetensors.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

torch::nn::Linear filled_linear(double value) {
  torch::nn::Linear net(3, 2);
  test::fill(*net, value);
  return net;
}

class LoadWeights : public ::testing::Test {
 protected:
  void put(const std::string& name, const NamedTensors& tensors) {
    write_safetensors(folder_.path(), name, tensors);
  }
  std::string refusal(const std::string& path, const LoadWeightsOptions& options = {}) {
    auto net = filled_linear(1);
    const std::string message = message_of([&] { load_weights(*net, path, options); });
    EXPECT_EQ(test::filled_with(*net), 1) << "something was changed";
    return message;
  }
  const test::TempFolder folder_;
  const at::Tensor weight_ = torch::full({2, 3}, 5.0), bias_ = torch::full({2}, 5.0);
};

TEST_F(LoadWeights, ByTheSameNamesWhateverTheTypeOfFloat) {
  put("net.safetensors", {{"weight", weight_.to(torch::kBFloat16)}, {"bias", bias_.to(torch::kDouble)}});
  auto net = filled_linear(1);
  EXPECT_THAT(load_weights(*net, folder_ / "net.safetensors").loaded, ElementsAre("weight", "bias"));
  EXPECT_EQ(test::filled_with(*net), 5);
  EXPECT_EQ(net->weight.scalar_type(), torch::kFloat);
}

TEST_F(LoadWeights, NamesAreMappedAndLeftOut) {
  put("net.safetensors", {{"fc.weight", weight_}, {"fc.bias", bias_}, {"old.scale", bias_}});
  auto net = filled_linear(1);
  const auto loaded = load_weights(*net, folder_ / "net.safetensors", {.name = [](const std::string& name) {
    return name.starts_with("fc.") ? name.substr(3) : std::string();
  }});
  EXPECT_TRUE(loaded.unexpected.empty());
  EXPECT_EQ(test::filled_with(*net), 5);
}

TEST_F(LoadWeights, APartAlone) {
  put("net.safetensors", {{"weight", weight_}, {"head", bias_}});
  auto net = filled_linear(1);
  const auto loaded = load_weights(*net, folder_ / "net.safetensors", {.partial = true});
  EXPECT_THAT(loaded.loaded, ElementsAre("weight"));
  EXPECT_THAT(loaded.missing, ElementsAre("bias"));
  EXPECT_THAT(loaded.unexpected, ElementsAre("head"));
  EXPECT_EQ(net->weight.min().item<double>(), 5);
  EXPECT_EQ(net->bias.max().item<double>(), 1);
}

TEST_F(LoadWeights, WhatDoesNotFitIsNamedAndChangesNothing) {
  put("half.safetensors", {{"weight", weight_}});
  EXPECT_THAT(refusal(folder_ / "half.safetensors"), HasSubstr("none for 1 tensor, 'bias' first"));
  put("more.safetensors", {{"weight", weight_}, {"bias", bias_}, {"more", bias_}});
  EXPECT_THAT(refusal(folder_ / "more.safetensors"), HasSubstr("got 1 other, 'more' first"));
  put("shape.safetensors", {{"weight", weight_.t().contiguous()}, {"bias", bias_}});
  EXPECT_THAT(refusal(folder_ / "shape.safetensors", {.partial = true}),
              HasSubstr("expected 'weight' of shape [2, 3], as in the model,"));
  put("other.safetensors", {{"a", bias_}});
  EXPECT_THAT(refusal(folder_ / "other.safetensors", {.partial = true}),
              HasSubstr("got none of their names"));
  EXPECT_THAT(refusal(folder_ / "more.safetensors", {.name = [](const std::string&) { return "bias"; }}),
              HasSubstr("'bias' for 'bias' and 'more'"));
  EXPECT_THAT(refusal(folder_ / "nowhere"), HasSubstr("cannot find"));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("or model.safetensors in"));
  test::put_file(folder_ / "cut.safetensors", test::get_file(folder_ / "half.safetensors").substr(0, 90));
  EXPECT_NE(refusal(folder_ / "cut.safetensors"), "");
}

TEST_F(LoadWeights, AFolderWithAnIndexAsHubsHaveIt) {
  put("model-00001-of-00002.safetensors", {{"weight", weight_}});
  put("model-00002-of-00002.safetensors", {{"bias", bias_}});
  put("stray.safetensors", {{"weight", weight_}});
  const std::string index = folder_ / kWeightIndexFile;
  write_file(index, R"({"metadata": {}, "weight_map": {"weight": "model-00001-of-00002.safetensors",
                                                        "bias": "model-00002-of-00002.safetensors"}})");
  auto net = filled_linear(1);
  EXPECT_EQ(load_weights(*net, folder_.path()).loaded.size(), 2U);
  EXPECT_EQ(test::filled_with(*net), 5);
  for (const char* wrong :
       {R"({"weight_map": {"weight": "../../etc/passwd"}})", R"({"weight_map": {"weight": 1}})",
        R"({"weight_map": {}})", "[", "", R"({"weight_map": {"a": "/etc/passwd"}})"}) {
    write_file(index, wrong);
    EXPECT_THAT(refusal(folder_.path()), HasSubstr("expected 'weight_map' with names of files beside it"))
        << wrong;
  }
}

TEST_F(LoadWeights, RanksHaveItFromRankZerosDisk) {
  put("net.safetensors", {{"weight", weight_}, {"bias", bias_}});
  muster::testing::run_ranks(3, [&](ProcessGroup& group) {
    auto net = filled_linear(group.rank());
    const std::string path = group.rank() == 0 ? folder_ / "net.safetensors" : "/nowhere";
    load_weights(*net, path, {}, group);
    EXPECT_EQ(test::filled_with(*net), 5);
    EXPECT_NE(message_of([&] { load_weights(*net, "/nowhere", {}, group); }), "");
    group.barrier();
  });
}

}  // namespace
}  // namespace muster
