#include "muster/checkpoint/weight_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/load_weights.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/save_weights.h"
#include "tests/checkpoint/model.h"
#include "tests/checkpoint/read_safetensors.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const WeightNames kNames{.rows = {{"wte", "table.weight"},
                                  {"head.weight", "table.weight"},
                                  {"h.*.c_attn.*", "blocks.*.qkv.*", WeightForm::transposed},
                                  {"layer_*.self.{query,key,value}.*", "blocks.*.qkv.*"},
                                  {"h.*.mask", ""}},
                         .prefix = "model."};

std::string in_model(const std::string& in_file) {
  const auto place = weight_in_model(kNames, in_file);
  if (!place)
    return "none";
  return cat(place->model, " ", place->part, "/", place->parts.size());
}

TEST(WeightNames, AFilesNameBecomesTheModels) {
  EXPECT_EQ(in_model("h.11.c_attn.weight"), "blocks.11.qkv.weight 0/1");
  EXPECT_EQ(in_model("model.h.0.c_attn.bias"), "blocks.0.qkv.bias 0/1");
  EXPECT_EQ(in_model("layer_3.self.value.weight"), "blocks.3.qkv.weight 2/3");
  EXPECT_EQ(in_model("h.0.mask"), " 0/1") << "left out";
  EXPECT_EQ(in_model("h.0.more.c_attn.weight"), "none") << "a star has no dot";
  EXPECT_EQ(in_model("h..c_attn.weight"), "none") << "a star is not empty";
  EXPECT_EQ(in_model("model.other"), "other 0/1") << "without the prefix";
  EXPECT_EQ(in_model("other"), "none");
}

TEST(WeightNames, TheModelsNameBecomesTheFirstRowsOfTheFile) {
  const WeightPlace place = weight_in_file(kNames, "blocks.4.qkv.bias");
  EXPECT_THAT(place.parts, ElementsAre("h.4.c_attn.bias"));
  EXPECT_EQ(place.form, WeightForm::transposed);
  EXPECT_THAT(weight_in_file(kNames, "table.weight").parts, ElementsAre("wte"));
  EXPECT_THAT(weight_in_file(kNames, "norm.weight").parts, ElementsAre("norm.weight"));
  const WeightNames bert{.rows = {{"a.{q,k}.*", "b.*"}}};
  EXPECT_THAT(weight_in_file(bert, "b.bias").parts, ElementsAre("a.q.bias", "a.k.bias"));
}

TEST(WeightNames, RowsThatCannotBeMeantAreRefused) {
  for (const WeightRow& row : {WeightRow{"", "a"},
                               WeightRow{"h.*.a", "a"},
                               WeightRow{"h.a", "a.*"},
                               WeightRow{"{*,a}.b", "*.b"},
                               WeightRow{"{a,*}.b", "a.b"},
                               WeightRow{"{a,b}.{c,d}", "a"},
                               WeightRow{"}a{", "a"},
                               WeightRow{"a}", "a"},
                               WeightRow{"a", "{b,c}"}})
    EXPECT_THAT(message_of([&] { check_weight_names({.rows = {row}}); }),
                HasSubstr(cat("got {'", row.file, "', '", row.model, "'}")));
  check_weight_names(kNames);
}

// A table of tokens and two blocks of a joined layer, as small as such a model can be.
struct TwoBlocksImpl : torch::nn::Module {
  TwoBlocksImpl() {
    register_module("table", table);
    for (int i = 0; i < 2; ++i) {
      auto block = std::make_shared<torch::nn::Module>();
      block->register_module("qkv", torch::nn::Linear(2, 6));
      blocks->push_back(std::move(block));
    }
    register_module("blocks", blocks);
  }
  torch::nn::Embedding table{5, 2};
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(TwoBlocks);

class PublishedWeights : public ::testing::Test {
 protected:
  std::string put(const NamedTensors& tensors) {
    std::filesystem::remove(folder_ / "net.safetensors");
    write_safetensors(folder_.path(), "net.safetensors", tensors);
    return folder_ / "net.safetensors";
  }
  NamedTensors published() const {
    NamedTensors tensors{{"model.wte", table_}, {"h.0.mask", torch::ones({4})}};
    for (int i = 0; i < 2; ++i) {
      tensors[cat("model.h.", i, ".c_attn.weight")] = qkv_[i].t().contiguous();
      tensors[cat("h.", i, ".c_attn.bias")] = bias_[i];
    }
    return tensors;
  }
  void expect_loaded(const TwoBlocks& net) const {
    const auto tensors = net->named_parameters();
    EXPECT_TRUE(torch::equal(tensors["table.weight"], table_));
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::equal(tensors[cat("blocks.", i, ".qkv.weight")], qkv_[i]));
      EXPECT_TRUE(torch::equal(tensors[cat("blocks.", i, ".qkv.bias")], bias_[i]));
    }
  }
  std::string refusal(const NamedTensors& tensors) {
    TwoBlocks net;
    test::fill(*net, 1);
    const std::string path = put(tensors);
    const std::string message = message_of([&] { load_weights(*net, path, {.names = kNames}); });
    EXPECT_EQ(test::filled_with(*net), 1) << "something was changed";
    return message;
  }

  const test::TempFolder folder_;
  const at::Tensor table_ = torch::rand({5, 2});
  const std::vector<at::Tensor> qkv_ = {torch::rand({6, 2}), torch::rand({6, 2})};
  const std::vector<at::Tensor> bias_ = {torch::rand({6}), torch::rand({6})};
};

TEST_F(PublishedWeights, AreLoadedByTheTableOnEveryRank) {
  const std::string path = put(published());
  testing::run_ranks(2, [&](ProcessGroup& group) {
    TwoBlocks net;
    const std::string own = group.rank() == 0 ? path : "/nowhere";
    const auto loaded = load_weights(*net, own, {.names = kNames}, group);
    EXPECT_TRUE(loaded.unexpected.empty());
    expect_loaded(net);
    const WeightShapes shapes = weight_shapes(own, kNames, group);
    EXPECT_THAT(shapes.at("blocks.1.qkv.weight"), ElementsAre(6, 2));
    EXPECT_EQ(shapes.size(), 5U) << "without what is left out";
    group.barrier();
  });
}

TEST_F(PublishedWeights, PartsAreJoined) {
  NamedTensors tensors{{"wte", table_}};
  const char* const names[] = {"query", "key", "value"};
  for (int i = 0; i < 2; ++i) {
    for (int part = 0; part < 3; ++part) {
      const std::string name = cat("model.layer_", i, ".self.", names[part], ".");
      tensors[name + "weight"] = qkv_[i].chunk(3)[part].clone();
      tensors[name + "bias"] = bias_[i].chunk(3)[part].clone();
    }
  }
  TwoBlocks net;
  load_weights(*net, put(tensors), {.names = kNames});
  expect_loaded(net);
  auto less = tensors;
  less.erase("model.layer_1.self.key.bias");
  EXPECT_THAT(refusal(less),
              HasSubstr("expected 'layer_1.self.key.bias', a part of the model's "
                        "'blocks.1.qkv.bias', in"));
  auto other = tensors;
  other["model.layer_0.self.key.weight"] = torch::rand({2, 3});
  EXPECT_THAT(
      refusal(other),
      HasSubstr("parts of 'blocks.0.qkv.weight' that differ in their first dimension alone"));
}

TEST_F(PublishedWeights, ACopyMustBeEqual) {
  auto tensors = published();
  tensors["head.weight"] = table_.clone();
  TwoBlocks net;
  load_weights(*net, put(tensors), {.names = kNames});
  expect_loaded(net);
  tensors["head.weight"] = table_ + 1;
  const std::string path = put(tensors);
  EXPECT_THAT(message_of([&] { load_weights(*net, path, {.names = kNames}); }),
              HasSubstr("expected 'model.wte' to be a copy of 'head.weight'"));
  tensors["head.weight"] = torch::rand({4, 2});
  EXPECT_THAT(refusal(tensors), HasSubstr("'table.weight' for 'head.weight' and 'model.wte'"));
}

TEST_F(PublishedWeights, WhatDoesNotFitIsNamedAsInTheFile) {
  auto tensors = published();
  tensors["model.h.1.c_attn.weight"] = qkv_[1];  // as the model has it
  EXPECT_THAT(refusal(tensors),
              HasSubstr("'blocks.1.qkv.weight' of shape [6, 2], as in the model, in"));
  EXPECT_THAT(refusal(tensors), HasSubstr("got [2, 6] of 'model.h.1.c_attn.weight'"));
  tensors = published();
  tensors.erase("h.1.c_attn.bias");
  EXPECT_THAT(refusal(tensors), HasSubstr("none for 1 tensor, 'blocks.1.qkv.bias' first"));
  tensors = published();
  tensors["model.h.2.c_attn.bias"] = bias_[0];
  EXPECT_THAT(refusal(tensors), HasSubstr("got 1 other, 'model.h.2.c_attn.bias' first"));
  TwoBlocks net;
  EXPECT_THAT(
      message_of([&] { load_weights(*net, "/nowhere", {.names = {.rows = {{"a.*", "b"}}}}); }),
      HasSubstr("got {'a.*', 'b'}"));
}

TEST_F(PublishedWeights, OnlySomeOfThem) {
  auto tensors = published();
  tensors["wte"] = torch::rand({9, 9});
  tensors.erase("model.wte");
  TwoBlocks net;
  test::fill(*net, 1);
  const auto loaded =
      load_weights(*net, put(tensors), {.names = kNames, .only = [](const std::string& name) {
                                          return name.starts_with("blocks.");
                                        }});
  EXPECT_EQ(loaded.loaded.size(), 4U);
  EXPECT_TRUE(loaded.missing.empty());
  EXPECT_EQ(net->table->weight.min().item<double>(), 1);
}

TEST_F(PublishedWeights, AreSavedAsTheyWerePublished) {
  TwoBlocks net;
  load_weights(*net, put(published()), {.names = kNames});
  const std::string path = folder_ / "new/folder/net.safetensors";
  testing::run_ranks(2, [&](ProcessGroup& group) {
    save_weights(*net, path, {.names = kNames}, group);
    group.barrier();
    EXPECT_THAT(message_of([&] { save_weights(*net, path, {.names = kNames}, group); }),
                HasSubstr("which exists; name another, or set .replace = true"));
    save_weights(*net, path, {.names = kNames, .replace = true}, group);
    group.barrier();
  });
  const auto content = read_safetensors(path);
  EXPECT_EQ(content.metadata.at("format"), "pt");
  EXPECT_EQ(content.tensors.size(), 5U);
  EXPECT_TRUE(torch::equal(content.tensors.at("h.1.c_attn.weight"), qkv_[1].t()));
  EXPECT_EQ(test::names_in(folder_ / "new/folder").size(), 1U) << "something is left beside it";

  const WeightNames bert{.rows = {{"layer.*.{query,key,value}.*", "blocks.*.qkv.*"}}};
  const auto is_bias = [](const std::string& name) {
    return name.ends_with("bias");
  };
  save_weights(*net, folder_ / "bert.safetensors", {.names = bert, .only = is_bias});
  const auto parts = read_safetensors(folder_ / "bert.safetensors").tensors;
  EXPECT_EQ(parts.size(), 6U);
  EXPECT_TRUE(torch::equal(parts.at("layer.1.value.bias"), bias_[1].chunk(3)[2]));
}

TEST_F(PublishedWeights, WhatCannotBeSavedIsNamed) {
  TwoBlocks net;
  const auto refused = [&](const SaveWeightsOptions& options) {
    const std::string message =
        message_of([&] { save_weights(*net, folder_ / "out.safetensors", options); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.safetensors"));
    return message;
  };
  EXPECT_THAT(refused({.names = {.rows = {{"{a,b,c,d}.*.*", "blocks.*.qkv.*"}}}}),
              HasSubstr("a first dimension that 4 parts divide, got 'blocks.0.qkv.weight' of shape "
                        "[6, 2]"));
  EXPECT_THAT(refused({.names = {.rows = {{"blocks.0.qkv.bias", "table.weight"}}}}),
              HasSubstr("'blocks.0.qkv.bias' for "));
  EXPECT_THAT(refused({.only = [](const std::string&) { return false; }}),
              HasSubstr("expected tensors to save, got none"));
  test::put_file(folder_ / "plain", "");
  EXPECT_NE(message_of([&] { save_weights(*net, folder_ / "plain/out.safetensors"); }), "");
}

}  // namespace
}  // namespace muster
