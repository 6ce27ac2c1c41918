// A divided vocabulary against torch's own embedding and cross_entropy.
#include "muster/parallel/tensor/vocabulary_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/parallel/tensor/tensor_parallel.h"
#include "tests/parallel/tensor/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

class VocabularyTest : public ::testing::TestWithParam<TensorCase> {
 protected:
  void run(const std::function<void(ProcessGroup&)>& body) const {
    at::set_num_threads(1);
    run_ranks(GetParam().ranks, body, {.backend = GetParam().backend});
  }
};
INSTANTIATE_TEST_SUITE_P(Groups,
                         VocabularyTest,
                         ::testing::Values(TensorCase{"shm", 1},
                                           TensorCase{"shm", 2},
                                           TensorCase{"shm", 3},
                                           TensorCase{"gloo", 2}),
                         [](const auto& info) { return name_of_case(info.param); });

constexpr int64_t kVocabulary = 101;  // no number of ranks divides it

at::Tensor vocabulary_targets(at::IntArrayRef sizes) {
  return (tensor_numbers(sizes, 3).abs() * 1e4).to(at::kLong) % kVocabulary;
}

// This rank's columns, as the head has them: the first ranks have one more.
at::Tensor vocabulary_part(const at::Tensor& logits, const ProcessGroup& group) {
  return logits.tensor_split(group.size(), -1)[static_cast<size_t>(group.rank())].contiguous();
}

TEST_P(VocabularyTest, TheLossAndItsGradientAreCrossEntropys) {
  run([](ProcessGroup& group) {
    for (const auto& [type, bound] : {std::pair(at::kFloat, 1e-6), std::pair(at::kDouble, 1e-14)}) {
      for (const double size : {1.0, 30.0}) {
        const at::Tensor whole =
            (tensor_numbers({4, 7, kVocabulary}, 1, type) * size).requires_grad_();
        at::Tensor targets = vocabulary_targets({4, 7});
        targets[0][2] = -100;
        targets[3].fill_(-100);
        at::Tensor part = vocabulary_part(whole.detach(), group).requires_grad_();
        const at::Tensor loss =
            parallel_cross_entropy(part, targets, group, {.vocabulary = kVocabulary});
        const at::Tensor expected =
            torch::cross_entropy_loss(whole.flatten(0, 1), targets.flatten());
        EXPECT_LT(tensor_difference(loss, expected),
                  bound * std::max(1.0, expected.item<double>()));
        (3 * loss).backward();
        (3 * expected).backward();
        EXPECT_LT(tensor_difference(part.grad(), vocabulary_part(whole.grad(), group)), bound);
      }
    }
  });
}

TEST_P(VocabularyTest, OneTargetMayHaveNoDimension) {
  run([](ProcessGroup& group) {
    const at::Tensor whole = tensor_numbers({kVocabulary}, 3);
    const at::Tensor part = vocabulary_part(whole.unsqueeze(0), group)[0];
    const at::Tensor loss =
        parallel_cross_entropy(part, torch::tensor(2), group, {.vocabulary = kVocabulary});
    EXPECT_NEAR(loss.item<double>(),
                torch::cross_entropy_loss(whole, torch::tensor(2)).item<double>(),
                1e-12);
  });
}

TEST_P(VocabularyTest, HalfTypesAreComputedInFloat) {
  run([](ProcessGroup& group) {
    const at::Tensor whole = tensor_numbers({8, kVocabulary}, 1, at::kBFloat16);
    const at::Tensor targets = vocabulary_targets({8});
    at::Tensor part = vocabulary_part(whole, group).requires_grad_();
    const at::Tensor loss =
        parallel_cross_entropy(part, targets, group, {.vocabulary = kVocabulary});
    EXPECT_LT(tensor_difference(loss, torch::cross_entropy_loss(whole.to(at::kFloat), targets)),
              1e-6);
    loss.backward();
    EXPECT_EQ(part.grad().scalar_type(), at::kBFloat16);
  });
}

TEST_P(VocabularyTest, NoLogitIsTooLarge) {
  run([](ProcessGroup& group) {
    at::Tensor whole = tensor_numbers({2, kVocabulary}, 1, at::kFloat) + 1e4;
    whole[1][5] = -INFINITY;
    const at::Tensor targets = torch::tensor({100, 0});
    const at::Tensor loss = parallel_cross_entropy(
        vocabulary_part(whole, group), targets, group, {.vocabulary = kVocabulary});
    EXPECT_LT(tensor_difference(loss, torch::cross_entropy_loss(whole, targets)), 1e-6);
  });
}

TEST_P(VocabularyTest, TheEmbeddingIsTheWholes) {
  run([](ProcessGroup& group) {
    torch::nn::Embedding whole(torch::nn::EmbeddingOptions(kVocabulary, 6).padding_idx(100));
    whole->to(at::kDouble);
    {
      const torch::NoGradGuard no_grad;
      whole->weight.copy_(tensor_numbers({kVocabulary, 6}, 4));
    }
    ParallelEmbedding mine = parallel_embedding(whole, group);
    const at::Tensor tokens = vocabulary_targets({3, 2 * group.size()});
    tokens[0][0] = 100;
    const at::Tensor weights = tensor_numbers({3, 2 * group.size(), 6}, 5);
    const at::Tensor out = mine(tokens);
    EXPECT_TRUE(out.equal(whole(tokens)));
    (out * weights).sum().backward();
    (whole(tokens) * weights).sum().backward();
    const auto expected =
        whole->weight.grad().tensor_split(group.size(), 0)[static_cast<size_t>(group.rank())];
    EXPECT_LT(tensor_difference(mine->weight.grad(), expected), 1e-12);
    EXPECT_TRUE(mine->gather_parameters().at("weight").equal(whole->weight));
    ParallelEmbedding in_parts = parallel_embedding(whole, group, {.sequence_dim = 1});
    EXPECT_TRUE(in_parts(tokens).equal(whole(tokens).narrow(1, 2 * group.rank(), 2)));
  });
}

TEST(Vocabulary, TokensThatThereAreNotAreRefusedOnEachRank) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    torch::nn::Embedding whole(10, 2);
    {
      const torch::NoGradGuard no_grad;
      whole->weight.fill_(1);
    }
    ParallelEmbedding mine = parallel_embedding(whole, group);
    const at::Tensor logits = torch::zeros({1, 5});
    EXPECT_THROW(parallel_cross_entropy(logits, torch::tensor({10}), group, {.vocabulary = 10}),
                 Error);
    EXPECT_THROW(parallel_cross_entropy(logits, torch::tensor({1}), group, {}), Error);
    EXPECT_THROW(parallel_cross_entropy(logits, torch::tensor({1, 2}), group, {.vocabulary = 10}),
                 Error);
    EXPECT_THROW(parallel_cross_entropy(logits, torch::tensor({1}), group, {.vocabulary = 12}),
                 Error);
    mine(torch::tensor({3, -1}));
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("from 0 to 9, got -1"));
}

TEST(Vocabulary, FewerTokensThanRanksAreRefusedOnEachRank) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    torch::nn::Embedding whole(2, 2);
    const torch::NoGradGuard no_grad;
    whole->weight.fill_(1);
    parallel_embedding(whole, group);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("3 ranks, got 2 tokens"));
}

TEST(Vocabulary, ATiedHeadIsNotDividedBesideItsEmbedding) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    torch::nn::Embedding words(4, 2);
    torch::nn::Linear head(torch::nn::LinearOptions(2, 4).bias(false));
    const torch::NoGradGuard no_grad;
    words->weight.fill_(1);
    head->weight = words->weight;
    parallel_embedding(words, group);  // of before
    column_parallel(head, group);
    const ParallelEmbedding mine = parallel_embedding(words, group), again(words, group);
    column_parallel(head, group);
  });
  for (const auto& failure : failures) {
    EXPECT_THAT(message_of(failure), HasSubstr("column_parallel: expected a weight of this layer"));
    EXPECT_THAT(message_of(failure), HasSubstr("copy_to_group(x, group), token->weight"));
  }
}

}  // namespace
}  // namespace muster::testing
