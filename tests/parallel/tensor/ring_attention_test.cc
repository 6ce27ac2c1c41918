// Attention over a divided sequence against torch's own on the whole one.
#include "muster/parallel/tensor/ring_attention.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <tuple>

#include "muster/base/error.h"
#include "tests/parallel/tensor/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

using Attention = at::Tensor (*)(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, ProcessGroup, ContextOptions);

class AttentionTest : public ::testing::TestWithParam<TensorCase> {
 protected:
  void run(const std::function<void(ProcessGroup&)>& body) const {
    at::set_num_threads(1);
    run_ranks(GetParam().ranks, body, {.backend = GetParam().backend});
  }
};
INSTANTIATE_TEST_SUITE_P(Groups,
                         AttentionTest,
                         ::testing::Values(TensorCase{"shm", 1},
                                           TensorCase{"shm", 2},
                                           TensorCase{"shm", 3},
                                           TensorCase{"shm", 4},
                                           TensorCase{"gloo", 2}),
                         [](const auto& info) { return name_of_case(info.param); });

// Output and gradients of q, k and v.
std::vector<at::Tensor> attention_results(
    const std::function<at::Tensor(at::Tensor, at::Tensor, at::Tensor)>& attention,
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& weights) {
  std::vector<at::Tensor> x;
  for (const at::Tensor& input : inputs)
    x.push_back(input.detach().clone().requires_grad_());
  const at::Tensor out = attention(x[0], x[1], x[2]);
  (out * weights).sum().backward();
  return {out.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
}

// The largest difference of this rank's output and gradients from the whole sequence's.
double attention_difference(ProcessGroup& group,
                            Attention attention,
                            const ContextOptions& options,
                            at::ScalarType type) {
  const int64_t n = group.size();
  const int64_t length = 10 * n;
  std::vector<at::Tensor> whole;
  for (uint64_t i = 0; i < 4; ++i)
    whole.push_back(tensor_numbers({2, n, length, 8}, i, type));
  const at::Tensor positions = sequence_positions(length, group, options.order);
  std::vector<at::Tensor> own;
  for (const at::Tensor& x : whole)
    own.push_back(x.index_select(2, positions));
  const auto expected = attention_results(
      [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return at::scaled_dot_product_attention(q, k, v, {}, 0.0, options.causal, options.scale);
      },
      {whole[0], whole[1], whole[2]},
      whole[3]);
  const auto ours = attention_results(
      [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return attention(q, k, v, group, options);
      },
      {own[0], own[1], own[2]},
      own[3]);
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), type);
    worst = std::max(worst, tensor_difference(ours[i], expected[i].index_select(2, positions)));
  }
  return worst;
}

TEST_P(AttentionTest, IsTheWholeSequencesForwardAndBackward) {
  run([](ProcessGroup& group) {
    double in_float = 0, in_double = 0, in_half = 0;
    for (const Attention attention : {&ring_attention, &all_to_all_attention}) {
      for (const bool causal : {false, true}) {
        for (const SequenceOrder order : {SequenceOrder::contiguous, SequenceOrder::zigzag}) {
          const ContextOptions options{.causal = causal, .order = order, .scale = 0.5, .tile = 4};
          in_float =
              std::max(in_float, attention_difference(group, attention, options, at::kFloat));
          in_double =
              std::max(in_double, attention_difference(group, attention, options, at::kDouble));
          in_half =
              std::max(in_half, attention_difference(group, attention, options, at::kBFloat16));
        }
      }
      in_double = std::max(in_double,
                           attention_difference(group, attention, {.causal = true}, at::kDouble));
    }
    EXPECT_LT(in_float, 1e-5);
    EXPECT_LT(in_double, 1e-13);
    EXPECT_LT(in_half, 0.1);
    if (group.rank() == 0)
      std::printf(
          "differs by %.1e double, %.1e float, %.1e bfloat16\n", in_double, in_float, in_half);
  });
}

// Autocast would compute scores in bf16.
TEST_P(AttentionTest, TheRingComputesFloatsUnderAutocast) {
  run([](ProcessGroup& group) {
    const auto result = [&](bool autocast) {
      std::vector<at::Tensor> x;
      for (uint64_t i = 0; i < 3; ++i)
        x.push_back(tensor_numbers({1, 2, 12, 8}, i, at::kFloat).requires_grad_());
      at::autocast::set_autocast_enabled(at::kCPU, autocast);
      const at::Tensor out = ring_attention(x[0], x[1], x[2], group, {});
      at::autocast::set_autocast_enabled(at::kCPU, false);
      out.sum().backward();
      return std::vector<at::Tensor>{out.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
    };
    const auto with = result(true), without = result(false);
    for (size_t i = 0; i < with.size(); ++i)
      EXPECT_TRUE(with[i].equal(without[i])) << i;
  });
}

TEST_P(AttentionTest, NoScoreIsTooLarge) {
  run([](ProcessGroup& group) {
    const int64_t n = group.size();
    const at::Tensor whole = tensor_numbers({1, 1, 4 * n, 4}, 1) * 100;
    const at::Tensor own = whole.index_select(2, sequence_positions(4 * n, group));
    const at::Tensor out = ring_attention(own, own, own, group, {.causal = true, .tile = 3});
    const at::Tensor expected =
        at::scaled_dot_product_attention(whole, whole, whole, {}, 0.0, true);
    EXPECT_LT(tensor_difference(out, expected.index_select(2, sequence_positions(4 * n, group))),
              1e-10);
  });
}

// Ranks with the same weights and other tokens: the mean of their gradients is the whole
// sequence's.
TEST_P(AttentionTest, WeightsTrainAsUnderDataParallelism) {
  run([](ProcessGroup& group) {
    const int64_t n = group.size(), length = 4 * n;
    const at::Tensor whole = tensor_numbers({2, length, 6}, 1);
    const at::Tensor positions = sequence_positions(length, group, SequenceOrder::zigzag);
    const auto gradient = [&](const at::Tensor& x, const auto& attention) {
      const at::Tensor weight = tensor_numbers({6, 3 * 8}, 2).requires_grad_();
      const auto parts =
          at::matmul(x, weight).view({2, x.size(1), 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind();
      attention(parts[0], parts[1], parts[2]).square().mean().backward();
      return weight.grad();
    };
    at::Tensor ours = gradient(
        whole.index_select(1, positions), [&](const auto& q, const auto& k, const auto& v) {
          return ring_attention(q, k, v, group, {.causal = true, .order = SequenceOrder::zigzag});
        });
    group.all_reduce(ours, ReduceOp::avg);
    const at::Tensor expected = gradient(whole, [](const auto& q, const auto& k, const auto& v) {
      return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
    });
    EXPECT_LT(tensor_difference(ours, expected), 1e-12);
  });
}

// Keys and values go round once in forward; once more, and their gradients with them, in backward.
TEST_P(AttentionTest, TrafficIsTheFormulas) {
  run([](ProcessGroup& group) {
    const int64_t n = group.size(), bytes = 2 * n * 6 * 4 * 8;  // of a rank's q, in double
    const auto numbers = [&](uint64_t seed) {
      return tensor_numbers({2, n, 6, 4}, seed).requires_grad_();
    };
    const at::Tensor q = numbers(1), k = numbers(2), v = numbers(3);
    const int64_t begin = group.traffic().bytes;
    const at::Tensor out = ring_attention(q, k, v, group);
    EXPECT_EQ(group.traffic().bytes - begin, (n - 1) * 2 * bytes);
    out.sum().backward();
    EXPECT_EQ(group.traffic().bytes - begin, n == 1 ? 0 : 2 * (n - 1) * 2 * bytes + n * 2 * bytes);
    const int64_t before = group.traffic().bytes;
    all_to_all_attention(q, k, v, group).sum().backward();
    EXPECT_EQ(group.traffic().bytes - before, 8 * bytes);
  });
}

TEST_P(AttentionTest, ZigzagPositionsAreOnePieceOfEachHalf) {
  run([](ProcessGroup& group) {
    const int64_t n = group.size(), r = group.rank();
    const at::Tensor positions = sequence_positions(4 * n, group, SequenceOrder::zigzag);
    const auto expected = torch::tensor({2 * r, 2 * r + 1, 4 * n - 2 * r - 2, 4 * n - 2 * r - 1});
    EXPECT_TRUE(positions.equal(expected)) << positions;
  });
}

// K is a rank's keys. The scores of two blocks would be 64 K, those of a rank 256 K.
TEST(AttentionOfRanks, TheRingsMemoryGrowsWithTheKeysAlone) {
  at::set_num_threads(1);
  run_ranks(4, [](ProcessGroup& group) {
    const int64_t keys = 2 * 1024 * 16 * 4;
    const auto numbers = [&](uint64_t seed) {
      return tensor_numbers({1, 2, 1024, 16}, seed, at::kFloat);
    };
    const at::Tensor q = numbers(1).requires_grad_(), k = numbers(2).requires_grad_();
    const at::Tensor v = numbers(3).requires_grad_(), weights = numbers(4);
    const auto measured = [](const auto& body) {
      const auto meter = std::make_shared<MemoryMeter>();
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
      body();
      return *meter;
    };
    at::Tensor out;
    const MemoryMeter forward =
        measured([&] { out = ring_attention(q, k, v, group, {.causal = true, .tile = 64}); });
    const MemoryMeter backward = measured([&] { out.backward(weights); });
    EXPECT_EQ(forward.largest, 2 * keys);
    EXPECT_EQ(backward.largest, 2 * keys);
    EXPECT_LT(forward.most, 7 * keys);
    EXPECT_LT(backward.most, 13 * keys);
    if (group.rank() == 3)
      std::printf("at most %.1f K in forward, %.1f K in backward\n",
                  static_cast<double>(forward.most) / keys,
                  static_cast<double>(backward.most) / keys);
  });
}

TEST(AttentionOfRanks, WhatDoesNotFitIsRefusedOnEachRank) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    const auto of = [](int64_t heads, int64_t tokens) {
      return torch::ones({1, heads, tokens, 4});
    };
    EXPECT_THROW(sequence_positions(7, group), Error);
    EXPECT_THROW(sequence_positions(6, group, SequenceOrder::zigzag), Error);
    EXPECT_THROW(ring_attention(of(2, 3), of(2, 3), of(1, 3), group), Error);
    EXPECT_THROW(
        ring_attention(of(2, 3), of(2, 3), of(2, 3), group, {.order = SequenceOrder::zigzag}),
        Error);
    EXPECT_THROW(ring_attention(of(2, 4), of(2, 4), of(2, 4), group, {.tile = 0}), Error);
    all_to_all_attention(of(3, 4), of(3, 4), of(3, 4), group);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("dimension 1 that 2 ranks divide, got 3"));
}

TEST(AttentionOfRanks, ADerivativeOfTheBackwardIsRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    const at::Tensor x = tensor_numbers({1, 1, 2, 4}, 1).requires_grad_();
    const at::Tensor out = ring_attention(x, x, x, group);
    EXPECT_THROW(torch::autograd::grad({out.sum()}, {x}, {}, true, /*create_graph=*/true), Error);
  });
}

TEST(AttentionOfRanks, ARankThatThrowsInTheMiddleIsAnErrorOnTheOthers) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    const at::Tensor x = tensor_numbers({1, 1, 2, 4}, 1).requires_grad_();
    const at::Tensor out = ring_attention(x, x, x, group);
    if (group.rank() == 1)
      throw Error(ErrorCode::io, "no space left");
    out.sum().backward();
  });
  for (const auto& failure : failures)
    EXPECT_THROW(std::rethrow_exception(failure), Error);
}

}  // namespace
}  // namespace muster::testing
