// The three models differ in what they ask of data-parallel training: the MLP has many parameters
// for little arithmetic, the CNN many small parameters, and the GPT is in between. python_ddp.py
// has the same ones, so a change here is one there too.
#include "muster/bench/bench_models.h"

#include "examples/02_gpt/gpt.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// A perceptron of seven layers with 23 million parameters.
struct BenchMlp : BenchModel {
  static constexpr int64_t kInputs = 1024, kHidden = 2048;

  BenchMlp() {
    layers->push_back(torch::nn::Linear(kInputs, kHidden));
    for (int layer = 0; layer < 5; ++layer) {
      layers->push_back(torch::nn::ReLU());
      layers->push_back(torch::nn::Linear(kHidden, kHidden));
    }
    layers->push_back(torch::nn::ReLU());
    layers->push_back(torch::nn::Linear(kHidden, labels));
    register_module("layers", layers);
  }

  torch::Tensor forward(const torch::Tensor& inputs) override { return layers->forward(inputs); }
  torch::Tensor make_inputs(int64_t batch) const override { return torch::randn({batch, kInputs}); }

  torch::nn::Sequential layers;
};

// Two convolutions beside a shortcut, which is the identity where the shapes allow it.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int64_t from, int64_t to, int64_t stride)
      : conv1(torch::nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false)),
        norm1(to),
        conv2(torch::nn::Conv2dOptions(to, to, 3).padding(1).bias(false)),
        norm2(to) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    if (stride == 1 && from == to)
      return;
    shortcut->push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 1).stride(stride).bias(false)));
    shortcut->push_back(torch::nn::BatchNorm2d(to));
    register_module("shortcut", shortcut);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto first = torch::relu(norm1(conv1(x)));
    const auto beside = shortcut->is_empty() ? x : shortcut->forward(x);
    return torch::relu(norm2(conv2(first)) + beside);
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
  torch::nn::Sequential shortcut;
};
TORCH_MODULE(ResidualBlock);

// A ResNet-18 for pictures of 32 × 32, with 11 million parameters.
struct BenchCnn : BenchModel {
  BenchCnn() {
    layers->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1).bias(false)));
    layers->push_back(torch::nn::BatchNorm2d(64));
    layers->push_back(torch::nn::ReLU());
    int64_t channels = 64;
    for (const int64_t width : {64, 128, 256, 512}) {
      layers->push_back(ResidualBlock(channels, width, width == channels ? 1 : 2));
      layers->push_back(ResidualBlock(width, width, 1));
      channels = width;
    }
    layers->push_back(torch::nn::AdaptiveAvgPool2d(1));
    layers->push_back(torch::nn::Flatten());
    layers->push_back(torch::nn::Linear(channels, labels));
    register_module("layers", layers);
  }

  torch::Tensor forward(const torch::Tensor& inputs) override { return layers->forward(inputs); }
  torch::Tensor make_inputs(int64_t batch) const override {
    return torch::randn({batch, 3, 32, 32});
  }

  torch::nn::Sequential layers;
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
    return torch::randint(kVocabulary, {batch, kContext}, torch::kLong);
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
