// The examples' models with weights as others publish them, against plain torch with the same files
// (published_weights.py), and LoRA on one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "examples/04_resnet/torchvision.h"
#include "examples/04_resnet/vit.h"
#include "examples/05_finetune/adapter_file.h"
#include "examples/05_finetune/bert.h"
#include "examples/05_finetune/gpt2.h"
#include "examples/05_finetune/lora.h"
#include "muster/checkpoint/safetensors.h"
#include "tests/checkpoint/read_safetensors.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int64_t kHeads = 4;
constexpr double kRounding = 2e-6;  // relative, of the largest

double difference(const torch::Tensor& got, const torch::Tensor& expected) {
  return ((got - expected).abs().max() / expected.abs().max()).item<double>();
}

template <class Work>
std::string refusal(const Work& work) {
  try {
    work();
    return "taken";
  } catch (const Error& error) {
    return error.what();
  }
}

// Skips where there is no Python that writes the files.
class Published : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TempFolder>();
    if (test::run_python("tests/examples/published_weights.py", folder_->path()))
      outputs_ = read_safetensors(file("out.safetensors")).tensors;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override {
    if (outputs_.empty())
      GTEST_SKIP() << "no Python with torch in .deps";
  }
  static std::string file(const std::string& name) { return *folder_ / name; }

  template <class Net>
  double difference_of(Net& net, const std::string& name) {
    const torch::NoGradGuard no_grad;
    net->eval();
    return difference(net(outputs_.at(name + ".in")), outputs_.at(name + ".out"));
  }
  // The head is not read, since a program has classes of its own.
  void set_head(torch::nn::Linear& head, const std::string& name) {
    const torch::NoGradGuard no_grad;
    head->weight.copy_(outputs_.at(name + ".weight"));
    head->bias.copy_(outputs_.at(name + ".bias"));
  }
  Gpt gpt2() { return load_gpt2(file("gpt2"), kHeads); }
  Gpt gpt2_with_lora(const LoraOptions& options) {
    Gpt net = gpt2();
    freeze(*net);
    for (const auto& block : *net->blocks)
      add_lora(*block->as<GptBlock>(), options);
    return net;
  }

  static inline std::unique_ptr<test::TempFolder> folder_;
  static inline NamedTensors outputs_;
};

TEST_F(Published, AGpt2GivesPythonsLogits) {
  for (const char* path : {"gpt2", "gpt2_bare.safetensors", "gpt2.pth"}) {
    Gpt net = load_gpt2(file(path), kHeads);
    EXPECT_EQ(net->options.layers, 2);
    EXPECT_EQ(net->options.context, 16);
    EXPECT_LT(difference_of(net, "gpt2"), kRounding) << path;
  }
}

TEST_F(Published, AGpt2IsSavedAsItWas) {
  Gpt net = gpt2();
  save_weights(*net, file("again.safetensors"), {.names = gpt2_names()});
  const auto before = read_safetensors(file("gpt2/model.safetensors")).tensors;
  const auto after = read_safetensors(file("again.safetensors")).tensors;
  EXPECT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before)
    EXPECT_TRUE(torch::equal(after.at(name.substr(std::string("transformer.").size())), tensor))
        << name;
}

TEST_F(Published, AnotherFileIsRefused) {
  EXPECT_THAT(refusal([&] { load_gpt2(file("vit.safetensors"), kHeads); }),
              HasSubstr("expected the matrices wte.weight and wpe.weight in"));
  EXPECT_THAT(refusal([&] { load_bert(file("vit.safetensors"), kHeads, 2); }),
              HasSubstr("expected the embeddings and layers of a BERT in"));
  EXPECT_THAT(refusal([&] { load_torchvision_resnet(file("gpt2.pth"), 10); }),
              HasSubstr("expected weights of torchvision's resnet18 or resnet34 in"));
  auto tensors = read_safetensors(file("gpt2/model.safetensors")).tensors;
  tensors["transformer.h.1.mlp.c_fc.weight"] = tensors["transformer.h.1.mlp.c_fc.weight"].t();
  write_safetensors(folder_->path(), "turned.safetensors", tensors);
  EXPECT_THAT(refusal([&] { load_gpt2(file("turned.safetensors"), kHeads); }),
              HasSubstr("got [32, 128] of 'transformer.h.1.mlp.c_fc.weight'"));
  tensors.erase("transformer.h.1.mlp.c_fc.weight");
  write_safetensors(folder_->path(), "less.safetensors", tensors);
  EXPECT_THAT(refusal([&] { load_gpt2(file("less.safetensors"), kHeads); }),
              HasSubstr("'blocks.1.up.weight' first"));
}

TEST_F(Published, ATorchvisionResNetGivesPythonsLogits) {
  for (const char* path : {"resnet18.pth", "resnet18.safetensors"}) {
    auto net = load_torchvision_resnet(file(path), 20);
    set_head(net->fc, "resnet.fc");
    EXPECT_LT(difference_of(net, "resnet"), kRounding) << path;
  }
}

TEST_F(Published, AVitGivesPythonsLogits) {
  auto net = load_vit(file("vit.safetensors"), 10);
  EXPECT_EQ(net->options.side, 8);
  set_head(net->head, "vit.head");
  EXPECT_LT(difference_of(net, "vit"), kRounding);
}

// Of texts of different lengths. A file without the classes' head, and with the first training's,
// is taken too.
TEST_F(Published, ABertGivesPythonsLogits) {
  const torch::NoGradGuard no_grad;
  for (const char* path : {"bert.safetensors", "bert_old.pth"}) {
    auto net = load_bert(file(path), kHeads, 3);
    EXPECT_EQ(net->options.layers, 2);
    EXPECT_EQ(net->options.inner, 48);
    set_head(net->head, "bert.head");
    const auto logits = [&] {
      return net(outputs_.at("bert.in"), outputs_.at("bert.kinds"), outputs_.at("bert.mask"));
    };
    EXPECT_GT(difference(logits(), outputs_.at("bert.out")), 0.01) << "no dropout in training";
    net->eval();
    EXPECT_LT(difference(logits(), outputs_.at("bert.out")), kRounding) << path;
  }
}

TEST_F(Published, ABertIsTrainedWhole) {
  auto net = load_bert(file("bert.safetensors"), kHeads, 3);
  const auto logits =
      net(outputs_.at("bert.in"), outputs_.at("bert.kinds"), outputs_.at("bert.mask"));
  torch::cross_entropy_loss(logits, torch::arange(3)).backward();
  for (const auto& item : net->named_parameters())
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
}

TEST_F(Published, AnAdapterChangesNothingAtFirstAndIsTrainedAlone) {
  Gpt net = gpt2_with_lora({.rank = 3, .layers = {"qkv", "down"}});
  EXPECT_LT(difference_of(net, "gpt2"), kRounding);
  net->train();
  next_token_loss(net(outputs_.at("gpt2.in")), outputs_.at("gpt2.in")).backward();
  std::vector<std::string> trained;
  for (const auto& item : net->named_parameters())
    if (item.value().grad().defined())
      trained.push_back(item.key());
  EXPECT_THAT(trained,
              UnorderedElementsAre("blocks.0.qkv.lora_A.weight",
                                   "blocks.0.qkv.lora_B.weight",
                                   "blocks.0.down.lora_A.weight",
                                   "blocks.0.down.lora_B.weight",
                                   "blocks.1.qkv.lora_A.weight",
                                   "blocks.1.qkv.lora_B.weight",
                                   "blocks.1.down.lora_A.weight",
                                   "blocks.1.down.lora_B.weight"));
  EXPECT_EQ(trained_parameters(*net).size(), trained.size());
  EXPECT_EQ(adapters_of(whole_pieces(*net)).size(), trained.size());
}

TEST_F(Published, AnAdapterIsSavedAsPeftHasItAndMerged) {
  const LoraOptions options{.rank = 3, .alpha = 5, .layers = {"qkv", "mix", "up", "down"}};
  Gpt net = gpt2_with_lora(options);
  for (const auto& parameter : trained_parameters(*net))
    torch::nn::init::normal_(parameter, 0, 0.2);
  const torch::NoGradGuard no_grad;
  const auto tokens = outputs_.at("gpt2.in");
  const auto tuned = net(tokens);
  EXPECT_GT(difference_of(net, "gpt2"), 0.1);

  save_adapter(net, file("adapter"), "gpt2", options);
  const auto saved = read_safetensors(file("adapter/adapter_model.safetensors")).tensors;
  EXPECT_EQ(saved.size(), 16U);
  EXPECT_EQ(saved.at("base_model.model.transformer.h.1.mlp.c_proj.lora_A.weight").sizes(),
            (std::vector<int64_t>{3, 128}));
  EXPECT_THAT(test::get_file(file("adapter/adapter_config.json")),
              HasSubstr(R"("target_modules": ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"])"));

  Gpt other = gpt2_with_lora(options);
  load_adapter(other, file("adapter/adapter_model.safetensors"));
  EXPECT_TRUE(torch::equal(other(tokens), tuned));
  merge_lora(*other);
  EXPECT_LT(difference(other(tokens), tuned), kRounding);
  save_weights(
      *other,
      file("merged.safetensors"),
      {.names = gpt2_names(), .only = [](const std::string& name) { return !is_adapter(name); }});
  Gpt merged = load_gpt2(file("merged.safetensors"), kHeads);
  EXPECT_TRUE(torch::equal(merged(tokens), other(tokens)));

  Gpt smaller = gpt2_with_lora({.rank = 2, .layers = options.layers});
  EXPECT_THAT(refusal([&] { load_adapter(smaller, file("adapter/adapter_model.safetensors")); }),
              HasSubstr("'blocks.0.qkv.lora_A.weight' of shape [2, 32], as in the model, in"));
  EXPECT_THAT(refusal([&] { gpt2_with_lora({.layers = {"head"}}); }), HasSubstr("and 'head'"));
}

}  // namespace
}  // namespace muster::testing
