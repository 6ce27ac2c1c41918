#include "muster/checkpoint/load_weights.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/weight_files.h"
#include "muster/checkpoint/safetensors.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
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
  put("net.safetensors",
      {{"weight", weight_.to(torch::kBFloat16)}, {"bias", bias_.to(torch::kDouble)}});
  auto net = filled_linear(1);
  EXPECT_THAT(load_weights(*net, folder_ / "net.safetensors").loaded,
              ElementsAre("weight", "bias"));
  EXPECT_EQ(test::filled_with(*net), 5);
  EXPECT_EQ(net->weight.scalar_type(), torch::kFloat);
}

TEST_F(LoadWeights, NumbersThatTheTypeHasNotAreNamed) {
  at::Tensor wide = weight_.clone();
  wide[1][2] = 1e5;
  put("wide.safetensors", {{"weight", wide}, {"bias", bias_}});
  auto half = filled_linear(1);
  half->to(torch::kHalf);
  EXPECT_THAT(message_of([&] { load_weights(*half, folder_ / "wide.safetensors"); }),
              AllOf(HasSubstr("expected numbers that Half has for 'weight'"),
                    HasSubstr("got 100000, which becomes infinite in it")));
  EXPECT_EQ(test::filled_with(*half), 1);
  half->to(torch::kBFloat16);
  EXPECT_EQ(load_weights(*half, folder_ / "wide.safetensors").loaded.size(), 2U);
  wide[1][2] = -INFINITY;  // as a mask may be
  put("mask.safetensors", {{"weight", wide}, {"bias", bias_}});
  half->to(torch::kHalf);
  EXPECT_EQ(load_weights(*half, folder_ / "mask.safetensors").loaded.size(), 2U);
  EXPECT_EQ(half->weight[1][2].item<float>(), -INFINITY);
}

TEST_F(LoadWeights, NumbersThatWholeNumbersAreNotAreNamed) {
  struct Counted : torch::nn::Module {
    Counted() {
      register_buffer("steps", torch::zeros({2}, torch::kInt));
      register_buffer("mask", torch::zeros({2}, torch::kBool));
    }
  };
  Counted net;
  int files = 0;
  const auto load = [&](const at::Tensor& steps, const at::Tensor& mask) {
    const std::string name = cat(++files, ".safetensors");
    put(name, {{"steps", steps}, {"mask", mask}});
    load_weights(net, folder_ / name);
  };
  const auto message = [&](const at::Tensor& steps, const at::Tensor& mask) {
    return message_of([&] { load(steps, mask); });
  };
  const at::Tensor mask = torch::tensor({1.0, 0.0}), steps = torch::tensor({3.0, 7.0});
  load(steps, mask);
  load(torch::tensor({3, 7}), torch::tensor({1, 0}, torch::kByte));
  EXPECT_TRUE(net.named_buffers()["steps"].equal(torch::tensor({3, 7}, torch::kInt)));
  load(steps, torch::tensor({0, 255}, torch::kByte));
  EXPECT_TRUE(net.named_buffers()["mask"].equal(torch::tensor({false, true})));
  EXPECT_THAT(message(torch::tensor({3.0, 7.5}), mask),
              AllOf(HasSubstr("expected numbers that Int has for 'steps'"),
                    HasSubstr("got 7.5, which becomes 7 in it")));
  EXPECT_THAT(message(steps / torch::zeros({2}), mask), HasSubstr("got inf, which becomes"));
  EXPECT_THAT(message(torch::tensor({int64_t{1}, (int64_t{1} << 32) + 5}), mask),
              HasSubstr("which becomes 5 in it"));
  EXPECT_THAT(message(steps, torch::tensor({0.5, 0.0})),
              HasSubstr("expected numbers that Bool has for 'mask'"));
  EXPECT_THAT(message(steps, mask / torch::zeros({2})), HasSubstr("that Bool has for 'mask'"));
  EXPECT_THAT(message(torch::zeros({2}, torch::kComplexFloat), mask),
              HasSubstr("expected real numbers for 'steps'"));
}

TEST_F(LoadWeights, NamesAreMappedAndLeftOut) {
  put("net.safetensors", {{"fc.weight", weight_}, {"fc.bias", bias_}, {"old.scale", bias_}});
  auto net = filled_linear(1);
  const auto loaded =
      load_weights(*net, folder_ / "net.safetensors", {.name = [](const std::string& name) {
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
  EXPECT_THAT(
      refusal(folder_ / "more.safetensors", {.name = [](const std::string&) { return "bias"; }}),
      HasSubstr("'bias' for 'bias' and 'more'"));
  EXPECT_THAT(refusal(folder_ / "nowhere"), HasSubstr("cannot find"));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("or model.safetensors in"));
  test::put_file(folder_ / "cut.safetensors",
                 test::get_file(folder_ / "half.safetensors").substr(0, 90));
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
  for (const char* wrong : {R"({"weight_map": {"weight": "../../etc/passwd"}})",
                            R"({"weight_map": {"weight": 1}})",
                            R"({"weight_map": {}})",
                            "[",
                            "",
                            R"({"weight_map": {"a": "/etc/passwd"}})"}) {
    write_file(index, wrong);
    EXPECT_THAT(refusal(folder_.path()),
                HasSubstr("expected 'weight_map' with names of files beside it"))
        << wrong;
  }
}

// A table whose transpose is the head, as language models have it: two names of one tensor.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    table = register_module("table", torch::nn::Embedding(5, 3));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(3, 5).bias(false)));
    head->weight = head->register_parameter("tied", table->weight);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST_F(LoadWeights, ATiedTensorNeedsOneOfItsNames) {
  const auto table = torch::rand({5, 3});
  const auto untied = torch::rand({5, 3});
  put("tied.safetensors", {{"table.weight", table}, {"head.weight", untied}});
  TiedImpl net;
  const auto loaded = load_weights(net, folder_ / "tied.safetensors");
  EXPECT_THAT(loaded.loaded, ElementsAre("table.weight", "head.weight"));
  EXPECT_TRUE(loaded.missing.empty());
  EXPECT_TRUE(torch::equal(net.head->weight, table)) << "'head.tied' is the table";
  put("both.safetensors",
      {{"table.weight", table}, {"head.weight", untied}, {"head.tied", untied}});
  EXPECT_THAT(message_of([&] { load_weights(net, folder_ / "both.safetensors"); }),
              HasSubstr("another as 'head.tied' than under its other name"));
}

TEST_F(LoadWeights, ABatchNormsCounterMayBeMissing) {
  torch::nn::BatchNorm1d norm(2);
  put("norm.safetensors",
      {{"weight", bias_}, {"bias", bias_}, {"running_mean", bias_}, {"running_var", bias_}});
  EXPECT_TRUE(load_weights(*norm, folder_ / "norm.safetensors").missing.empty());
  EXPECT_EQ(norm->running_var.max().item<double>(), 5);
  put("less.safetensors", {{"weight", bias_}, {"bias", bias_}, {"running_mean", bias_}});
  EXPECT_THAT(message_of([&] { load_weights(*norm, folder_ / "less.safetensors"); }),
              HasSubstr("'running_var' first"));
}

TEST_F(LoadWeights, AreMadeOfOthersWhereAsked) {
  const auto joined = torch::arange(18, torch::kFloat).view({3, 6});  // of two layers, transposed
  put("conv1d.safetensors", {{"attn.weight", joined}, {"b", bias_}});
  const auto second = [&](const std::string& name, const WeightReader& file) -> at::Tensor {
    if (name == "weight")
      return file("attn.weight").chunk(3, 1)[1].t();
    return {};
  };
  const LoadWeightsOptions options{
      .name = [](const std::string& name) { return name == "b" ? "bias" : name; }, .make = second};
  muster::testing::run_ranks(2, [&](ProcessGroup& group) {
    auto net = filled_linear(1);
    const std::string path = group.rank() == 0 ? folder_ / "conv1d.safetensors" : "/nowhere";
    const auto loaded = load_weights(*net, path, options, group);
    EXPECT_THAT(loaded.loaded, ElementsAre("weight", "bias"));
    EXPECT_TRUE(loaded.unexpected.empty());
    EXPECT_TRUE(torch::equal(net->weight, torch::tensor({{2.F, 8.F, 14.F}, {3.F, 9.F, 15.F}})));
    EXPECT_EQ(net->bias.min().item<double>(), 5);
    group.barrier();
  });
  auto wrong = options;
  wrong.make = [](const std::string& name, const WeightReader& file) {
    return name == "weight" ? file("attn.weight") : at::Tensor();
  };
  EXPECT_THAT(refusal(folder_ / "conv1d.safetensors", wrong),
              HasSubstr("expected 'weight' of shape [2, 3], as in the model, in"));
  wrong.make = [](const std::string&, const WeightReader& file) {
    return file("nothing");
  };
  EXPECT_THAT(refusal(folder_ / "conv1d.safetensors", wrong),
              HasSubstr("expected 'nothing', for which .make asks"));
}

TEST_F(LoadWeights, ComplexNumbersDoNotLoseTheirImaginaryParts) {
  put("complex.safetensors", {{"weight", weight_.to(torch::kComplexFloat)}, {"bias", bias_}});
  EXPECT_THAT(refusal(folder_ / "complex.safetensors", {}),
              HasSubstr("C64[2, 3] 'weight', of which only the real parts would stay"));
}

TEST_F(LoadWeights, QuantizedNumbersAreRefusedWithoutTheirScale) {
  const auto int8 = torch::full({2, 3}, 100, torch::kChar);
  put("int8.safetensors",
      {{"weight", int8}, {"weight_scale", torch::full({1}, 0.05)}, {"bias", bias_}});
  EXPECT_THAT(
      refusal(folder_ / "int8.safetensors", {.partial = true}),
      HasSubstr("I8[2, 3] 'weight', which is quantized; multiply it with its scale by .make"));
  for (const char* scale : {"weight_scale_inv", "weight.scale", "scale_weight", "scales", "SCB"}) {
    const std::string name = std::string(scale) + ".safetensors";
    put(name,
        {{"weight", weight_.to(torch::kFloat8_e4m3fn)},
         {scale, torch::ones({1})},
         {"bias", bias_}});
    EXPECT_THAT(refusal(folder_ / name, {.partial = true}), HasSubstr("which is quantized"))
        << name;
  }
  auto net = filled_linear(1);
  load_weights(*net,
               folder_ / "int8.safetensors",
               {.make = [](const std::string& name, const WeightReader& file) {
                 return name == "weight" ? file(name).to(torch::kFloat) * file("weight_scale")
                                         : at::Tensor();
               }});
  EXPECT_NEAR(net->weight.min().item<double>(), 5, 1e-5);
  put("plain.safetensors",
      {{"weight", weight_.to(torch::kFloat8_e5m2)}, {"bias", bias_}, {"layer_scale", bias_}});
  load_weights(*net, folder_ / "plain.safetensors", {.partial = true});
  EXPECT_EQ(test::filled_with(*net), 5) << "fp8 without a scale is a number like others";
}

// Elements that share bytes, as MXFP4 files have them beside others.
TEST_F(LoadWeights, TensorsOfFourBitsDoNotBlockTheOthers) {
  const std::string json = R"({"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
                           R"("experts":{"dtype":"F4","shape":[3,2],"data_offsets":[32,35]},)"
                           R"("scales":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[35,37]}})";
  const uint64_t size = json.size();
  const std::vector<float> values(8, 5.0F);
  std::string file(reinterpret_cast<const char*>(&size), 8);
  file += json + std::string(reinterpret_cast<const char*>(values.data()), 32) +
          std::string(3, '\x21') + "\x80\x7f";
  test::put_file(folder_ / "mx.safetensors", file);
  auto net = filled_linear(1);
  EXPECT_THAT(load_weights(*net, folder_ / "mx.safetensors", {.partial = true}).unexpected,
              ElementsAre("experts", "scales"));
  EXPECT_EQ(test::filled_with(*net), 5);
  EXPECT_THAT(refusal(folder_ / "mx.safetensors",
                      {.make = [](const std::string&,
                                  const WeightReader& file) { return file("experts"); }}),
              HasSubstr("elements that LibTorch computes with, got F4[3, 2]"));
  at::Tensor scales;
  load_weights(*net,
               folder_ / "mx.safetensors",
               {.make =
                    [&](const std::string& name, const WeightReader& file) {
                      if (name == "bias")
                        scales = file("scales").to(torch::kFloat);
                      return at::Tensor();
                    },
                .partial = true});
  EXPECT_TRUE(scales.defined());
}

TEST_F(LoadWeights, FilesOfOtherKindsAreNamed) {
  auto net = filled_linear(1);
  torch::save(net, folder_ / "net.pt");
  EXPECT_THAT(refusal(folder_ / "net.pt"),
              HasSubstr("what C++'s torch::save wrote is for torch::load"));
  const std::pair<const char*, const char*> kinds[] = {
      {"GGUF\3\0\0\0\1\0\0\0", "a GGUF file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 9\n",
       "Git LFS's pointer to the file; fetch"},
      {"\x80\x02}q\x01(X\x06", "a pickle"},
      {"<!DOCTYPE html><html>", "a page of HTML"},
      {"{\"architectures\": []}", "JSON, such as an index"},
  };
  for (const auto& [bytes, what] : kinds) {
    test::put_file(folder_ / "other.safetensors", bytes + std::string(20, 'x'));
    EXPECT_THAT(refusal(folder_ / "other.safetensors"), HasSubstr(what));
  }
  const std::string is_empty =
      "got an empty file; whoever wrote or copied it was interrupted: make it again";
  test::put_file(folder_ / "empty.pt", "");
  EXPECT_THAT(refusal(folder_ / "empty.pt"), AllOf(HasSubstr("empty.pt"), HasSubstr(is_empty)));
  test::put_file(folder_ / "pytorch_model.bin", "");
  EXPECT_THAT(refusal(folder_.path()), HasSubstr(is_empty));
  test::put_file(folder_ / "pytorch_model.bin", "PK\3\4");
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("expected a whole archive in"));
  std::filesystem::rename(folder_ / "pytorch_model.bin", folder_ / "pytorch_model.bin.index.json");
  EXPECT_THAT(refusal(folder_.path()),
              HasSubstr("got pytorch_model.bin, which torch.save has written; convert it"));
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
