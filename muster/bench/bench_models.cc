// The three models differ in what they ask of data-parallel training: the MLP has many parameters
// for little arithmetic, the CNN many small parameters, and the GPT is in between. python_ddp.py
// has the same ones, so a change here is one there too.
#include "muster/bench/bench_models.h"

#include "examples/02_gpt/gpt.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

namespace nn = torch::nn;

// A model that is one layer after the other.
struct LayeredModel : BenchModel {
  LayeredModel() { register_module("layers", layers); }

  torch::Tensor forward(const torch::Tensor& inputs) override { return layers->forward(inputs); }

  nn::Sequential layers;
};

// A perceptron of seven layers with 23 million parameters.
struct BenchMlp : LayeredModel {
  static constexpr int64_t kInputs = 1024, kHidden = 2048;

  BenchMlp() {
    layers->push_back(nn::Linear(kInputs, kHidden));
    for (int layer = 0; layer < 5; ++layer) {
      layers->push_back(nn::ReLU());
      layers->push_back(nn::Linear(kHidden, kHidden));
    }
    layers->push_back(nn::ReLU());
    layers->push_back(nn::Linear(kHidden, labels));
  }

  torch::Tensor make_inputs(int64_t batch) const override { return torch::randn({batch, kInputs}); }
};

// Two convolutions beside a shortcut, which is the identity where the shapes allow it.
struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl(int64_t from, int64_t to, int64_t stride)
      : conv1(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false)),
        norm1(to),
        conv2(nn::Conv2dOptions(to, to, 3).padding(1).bias(false)),
        norm2(to) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    if (stride == 1 && from == to)
      return;
    shortcut->push_back(nn::Conv2d(nn::Conv2dOptions(from, to, 1).stride(stride).bias(false)));
    shortcut->push_back(nn::BatchNorm2d(to));
    register_module("shortcut", shortcut);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto first = torch::relu(norm1(conv1(x)));
    const auto beside = shortcut->is_empty() ? x : shortcut->forward(x);
    return torch::relu(norm2(conv2(first)) + beside);
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Sequential shortcut;
};
TORCH_MODULE(ResidualBlock);

// A ResNet-18 for pictures of 32 × 32, with 11 million parameters.
struct BenchCnn : LayeredModel {
  BenchCnn() {
    layers->push_back(nn::Conv2d(nn::Conv2dOptions(3, 64, 3).padding(1).bias(false)));
    layers->push_back(nn::BatchNorm2d(64));
    layers->push_back(nn::ReLU());
    int64_t channels = 64;
    for (const int64_t width : {64, 128, 256, 512}) {
      layers->push_back(ResidualBlock(channels, width, width == channels ? 1 : 2));
      layers->push_back(ResidualBlock(width, width, 1));
      channels = width;
    }
    layers->push_back(nn::AdaptiveAvgPool2d(1));
    layers->push_back(nn::Flatten());
    layers->push_back(nn::Linear(channels, labels));
  }

  torch::Tensor make_inputs(int64_t batch) const override {
    return torch::randn({batch, 3, 32, 32});
  }
};

// The GPT of examples/02_gpt, with 11 million parameters. A sample has a row of logits for each of
// its tokens.
struct BenchGpt : BenchModel {
  static constexpr int64_t kVocabulary = 96, kContext = 64;

  BenchGpt()
      : gpt(GptOptions{.vocabulary = kVocabulary,
                       .layers = 6,
                       .heads = 6,
                       .width = 384,
                       .context = kContext}) {
    register_module("gpt", gpt);
    rows_of_sample = kContext;
    labels = kVocabulary;
  }

  torch::Tensor forward(const torch::Tensor& inputs) override { return gpt(inputs).flatten(0, 1); }
  torch::Tensor make_inputs(int64_t batch) const override {
    return torch::randint(kVocabulary, {batch, kContext}, kLong);
  }

  Gpt gpt;
};

}  // namespace

// The MLP's samples are cheap.
int64_t default_batch(const std::string& model) {
  return model == "mlp" ? 64 : 4;
}

std::shared_ptr<BenchModel> make_bench_model(const std::string& name) {
  if (name == "mlp")
    return std::make_shared<BenchMlp>();
  if (name == "cnn")
    return std::make_shared<BenchCnn>();
  if (name == "gpt")
    return std::make_shared<BenchGpt>();
  throw invalid_argument("--model: expected mlp, cnn, gpt, got '", name, "'");
}

}  // namespace muster
