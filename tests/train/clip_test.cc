#include "muster/train/clip.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>

#include "muster/base/strings.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

std::vector<at::Tensor> parameters_to_clip(const std::string& kind,
                                           std::optional<double> bad = {}) {
  torch::manual_seed(11);
  const std::map<std::string, std::vector<at::ScalarType>> types{
      {"float", {at::kFloat}},
      {"double", {at::kDouble}},
      {"mixed", {at::kFloat, at::kDouble, at::kBFloat16}}};
  const std::vector<std::vector<int64_t>> shapes{{3}, {17, 5}, {}, {64, 33}, {1}, {2, 3, 4}};
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto type = types.at(kind)[i % types.at(kind).size()];
    found.push_back(torch::zeros(shapes[i], type).requires_grad_(true));
    found.back().mutable_grad() = torch::randn(shapes[i]).to(type);
    if (i == 1)
      found.back().mutable_grad() = found.back().grad().t().contiguous().t();
  }
  found.push_back(torch::zeros({5}, torch::requires_grad()));
  if (bad)
    found[3].mutable_grad()[1][2] = *bad;
  return found;
}

std::vector<double> all_gradients(const std::vector<at::Tensor>& parameters,
                                  std::vector<double> before = {}) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined())
      continue;
    const auto numbers = numbers_of(parameter.grad());
    before.insert(before.end(), numbers.begin(), numbers.end());
  }
  return before;
}

std::vector<double> norm_and_gradients(const std::vector<at::Tensor>& parameters,
                                       double norm,
                                       double most) {
  const auto total = clip_grad_norm(parameters, most, norm);
  return all_gradients(parameters, numbers_of(total));
}

TEST(Clip, NormsAndGradientsArePythonsBits) {
  const auto oracle = ask_python("pytorch_clip.py");
  if (!oracle)
    GTEST_SKIP() << "no Python with PyTorch in .deps";
  for (const std::string kind : {"float", "double", "mixed"}) {
    for (const double norm : {1.0, 2.0, 3.5, static_cast<double>(INFINITY)}) {
      for (const double most : {0.1, 1000.0})
        expect_as_python(*oracle,
                         cat("norm_", kind, "_", norm, "_", most),
                         norm_and_gradients(parameters_to_clip(kind), norm, most));
    }
  }
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)})
    expect_as_python(*oracle,
                     cat("norm_with_", bad),
                     norm_and_gradients(parameters_to_clip("float", bad), 2, 1));
  for (const std::string kind : {"float", "mixed"}) {
    const auto parameters = parameters_to_clip(kind, NAN);
    clip_grad_value(parameters, 0.5);
    expect_as_python(*oracle, "value_" + kind, all_gradients(parameters));
  }
}

TEST(Clip, SparseGradientsCountAsTheirSum) {
  torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(6, 3).sparse(true));
  torch::nn::Embedding dense(6, 3);
  auto plain = torch::ones({4}, torch::requires_grad());
  const auto rows = torch::tensor({1, 4, 1, 1});
  (sparse(rows).sum() + dense(rows).sum() + plain.sum()).backward();
  const auto norm = clip_grad_norm({sparse->weight, plain}, 2.0);
  plain.mutable_grad().fill_(1);
  EXPECT_EQ(norm.item<float>(), clip_grad_norm({dense->weight, plain}, 2.0).item<float>());
  EXPECT_TRUE(sparse->weight.grad().to_dense().equal(dense->weight.grad()));
  clip_grad_value({sparse->weight}, 0.25);
  EXPECT_EQ(sparse->weight.grad().to_dense().max().item<float>(), 0.25);
}

TEST(Clip, NothingToClip) {
  EXPECT_EQ(clip_grad_norm({}, 1.0).item<float>(), 0);
  EXPECT_EQ(grad_norm({torch::ones({2}, torch::requires_grad())}).item<float>(), 0);
}

TEST(Clip, WrongUseIsNamed) {
  EXPECT_EQ(message_of_error([] { clip_grad_norm({}, -1); }),
            "clip_grad_norm: expected a max_norm of 0 or more, got -1; 1.0 is a common choice");
  EXPECT_THAT(message_of_error([] { clip_grad_norm({}, 1, 0); }),
              HasSubstr("a norm_type above 0, got 0"));
  EXPECT_THAT(message_of_error([] { clip_grad_value({}, 0); }),
              HasSubstr("a value above 0, got 0"));
}

}  // namespace
}  // namespace muster::testing
