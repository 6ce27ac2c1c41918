// What the tests of evaluate() and predict() have in common: a small network, its data on ranks
// with different numbers of batches, and a stream of the same examples.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>

#include "muster/data/loader.h"
#include "muster/data/stream_loader.h"
#include "muster/train/evaluate.h"
#include "tests/support/ranks.h"

namespace muster::testing {

constexpr int64_t kClasses = 7;

struct ScoredNetImpl : torch::nn::Module {
  ScoredNetImpl() {
    register_module("fc1", fc1);
    register_module("norm", norm);
    register_module("drop", drop);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc2(drop(torch::relu(norm(fc1(x))))); }
  torch::nn::Linear fc1{4, 16}, fc2{16, kClasses};
  torch::nn::BatchNorm1d norm{16};
  torch::nn::Dropout drop{0.5};
};
TORCH_MODULE(ScoredNet);

// The same weights on every rank; parameters must not come from the generator that ranks as
// threads share.
inline ScoredNet scored_net() {
  ScoredNet net;
  const torch::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(3);
  for (auto& parameter : net->parameters())
    parameter.copy_(torch::randn(parameter.sizes(), generator));
  return net;
}

// One label in five is ignored.
inline TensorDataset scored_data(int64_t samples) {
  const auto x = torch::randn({samples, 4}, at::detail::createCPUGenerator(1));
  auto labels =
      torch::randint(kClasses, {samples}, at::detail::createCPUGenerator(2)).to(torch::kLong);
  labels.slice(0, 3, samples, 5).fill_(-100);
  return {x, labels};
}

template <class Data>
DataLoader<Data> loader_of(ProcessGroup& group, Data data, DataLoaderOptions options) {
  const auto shared = std::make_shared<const Data>(std::move(data));
  const SamplerOptions sampling{
      .num_replicas = group.size(), .rank = group.rank(), .shuffle = false, .pad = false};
  return {shared, std::make_shared<DistributedSampler>(shared->size(), sampling), options};
}

// The examples of a data set as a stream: part p of n has every n-th from the p-th.
class RowStream : public Stream<LabelledExample> {
 public:
  explicit RowStream(TensorDataset data) : data_(std::move(data)) {}
  std::unique_ptr<StreamReader<LabelledExample>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(data_, part);
  }

 private:
  class Reader : public StreamReader<LabelledExample> {
   public:
    Reader(const TensorDataset& data, const StreamPart& part)
        : data_(data), next_(part.part), parts_(part.parts) {}
    std::optional<LabelledExample> next() override {
      if (next_ >= data_.size())
        return std::nullopt;
      const int64_t row = next_;
      next_ += parts_;
      return LabelledExample{data_.features()[row], data_.labels()[row]};
    }

   private:
    TensorDataset data_;
    int64_t next_;
    int64_t parts_;
  };
  TensorDataset data_;
};

}  // namespace muster::testing
