#include "muster/train/metric.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "muster/base/error.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
    return "accepted";
  } catch (const Error& error) {
    return error.what();
  }
}

// The rows of rank `rank`: as many as its number, so that rank 0 has none.
at::Tensor part_of(const at::Tensor& rows, int rank) {
  return rows.slice(0, rank * (rank - 1) / 2, rank * (rank + 1) / 2);
}

TEST(Metric, AMeanCountsValuesOrWhatItsMeansSay) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [](ProcessGroup& group) {
      Mean each, of_means, by_counts;
      const at::Tensor values = part_of(torch::arange(6, torch::kDouble), group.rank());
      each.add(values);
      of_means.add(values.mean(), static_cast<double>(values.numel()));
      by_counts.add(values.mean(), torch::tensor(values.numel()));
      for (Mean* mean : {&each, &of_means, &by_counts}) {
        mean->reduce(group);
        const int count = group.size() * (group.size() - 1) / 2;
        EXPECT_EQ(mean->count(), count);
        if (count == 0)
          EXPECT_TRUE(std::isnan(mean->value()));
        else
          EXPECT_DOUBLE_EQ(mean->value(), (count - 1) / 2.0);
      }
      each.reset();
      EXPECT_EQ(each.count(), 0);
    });
  }
  Mean mean;
  EXPECT_THAT(refusal_of([&] { mean.add(torch::ones({2}), 2.0); }), HasSubstr("got shape [2]"));
  EXPECT_THAT(refusal_of([&] { mean.add(torch::ones({}), -1.0); }), HasSubstr("got -1"));
}

TEST(Metric, WhatIsAddedToACopyStaysThere) {
  Mean mean;
  mean.add(torch::tensor({1.0, 3.0}));
  Mean copy = mean;
  copy.add(torch::tensor({8.0}));
  EXPECT_EQ(mean.value(), 2);
  EXPECT_EQ(copy.value(), 4);
}

// The oracle looks at each label alone.
double accuracy_by_hand(const at::Tensor& logits, const at::Tensor& labels, int64_t k, int64_t no) {
  double hits = 0, counted = 0;
  for (int64_t i = 0; i < labels.numel(); ++i) {
    const auto label = labels[i].item<int64_t>();
    if (label == no)
      continue;
    ++counted;
    hits += logits[i].gt(logits[i][label]).sum().item<int64_t>() < k ? 1 : 0;
  }
  return hits / counted;
}

TEST(Metric, AccuracyOfTheLikeliestWithoutTheIgnored) {
  torch::manual_seed(1);
  const at::Tensor logits = torch::randn({6, 7});
  const at::Tensor labels = torch::tensor({0, 5, -100, 6, -100, 2});
  for (const int64_t k : {1, 3, 7}) {
    run_ranks(4, [&](ProcessGroup& group) {
      const at::Tensor mine = part_of(logits, group.rank()), right = part_of(labels, group.rank());
      Accuracy some({.top = k, .ignore_index = -100});
      some.add(mine, right.clamp(-100, 6));
      some.reduce(group);
      EXPECT_EQ(some.value(), accuracy_by_hand(logits, labels, k, -100));
      EXPECT_EQ(some.count(), 4);
    });
  }
  Accuracy pixels;
  pixels.add(torch::randn({2, 4, 4, 3}), torch::zeros({2, 4, 4}, torch::kLong));
  EXPECT_EQ(pixels.count(), 32);
  EXPECT_THAT(refusal_of([&] { pixels.add(torch::randn({2, 3, 4, 4}), torch::zeros({2, 4, 4})); }),
              HasSubstr("logits.movedim(1, -1)"));
  EXPECT_THAT(refusal_of([] { Accuracy({.top = 0}); }), HasSubstr("got 0"));
  EXPECT_THAT(refusal_of([] { Accuracy({.top = 4}).add(torch::ones({1, 3}), torch::ones({1})); }),
              HasSubstr("[1, 3], [1] and 4"));
}

TEST(Metric, AccuracyRefusesWhatIsNoClass) {
  run_ranks(2, [](ProcessGroup& group) {
    Accuracy top1;
    top1.add(torch::eye(3), torch::tensor({0, 1, group.rank() == 0 ? 3 : -100}));
    EXPECT_THAT(refusal_of([&] { top1.reduce(group); }),
                HasSubstr("labels that are classes, from 0 on, got 2 others"));
    Accuracy ignoring({.ignore_index = -100});
    ignoring.add(torch::eye(3), torch::tensor({0, 1, -100}));
    ignoring.reduce(group);
    EXPECT_EQ(ignoring.value(), 1);
  });
  Accuracy of_one;
  EXPECT_THAT(refusal_of([&] { of_one.add(torch::ones({4, 1}), torch::tensor({0, 1, 1, 1})); }),
              HasSubstr("logits of 2 classes or more, got [4, 1]"));
}

// argmax and topk take NaN for the largest: of a model that has become NaN all were class 0.
TEST(Metric, LogitsThatAreNaNPredictNoClass) {
  constexpr double kNaN = NAN;
  const at::Tensor labels = torch::tensor({0, 1, 1});
  const at::Tensor logits = torch::tensor({{kNaN, kNaN, kNaN}, {2.0, kNaN, 1.0}, {0.0, 1.0, -1.0}});
  for (const int64_t k : {1, 2, 3}) {
    Accuracy hits({.top = k});
    hits.add(logits, labels);
    EXPECT_EQ(hits.value(), 1.0 / 3) << k;
  }
  run_ranks(1, [&](ProcessGroup& group) {
    ConfusionMatrix matrix(3);
    matrix.add(logits, labels);
    ::testing::internal::CaptureStderr();
    matrix.reduce(group);
    matrix.reduce(group);
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(told, HasSubstr("got NaN for 2 labels on all ranks, which are left out"));
    EXPECT_EQ(told.find("got NaN"), told.rfind("got NaN"));
    EXPECT_EQ(matrix.value()[1][1].item<int64_t>(), 1);
    EXPECT_EQ(matrix.value().sum().item<int64_t>(), 1);
    matrix.add(logits, torch::tensor({7, 0, 0}));
    EXPECT_THAT(refusal_of([&] { matrix.reduce(group); }), HasSubstr("got 1 pairs with others"));
  });
}

TEST(Metric, AConfusionMatrixHasARowForEachLabel) {
  const at::Tensor labels = torch::tensor({0, 1, 1, 2, 255, 2});
  const at::Tensor predicted = torch::tensor({0, 2, 1, 0, 1, 0});
  const at::Tensor logits = torch::one_hot(predicted, 3).to(torch::kFloat);
  const at::Tensor expected = torch::tensor({1, 0, 0, 0, 1, 1, 2, 0, 0}).view({3, 3});
  run_ranks(4, [&](ProcessGroup& group) {
    ConfusionMatrix by_class(3, 255), by_logits(3, 255), of_all(3);
    by_class.add(part_of(predicted, group.rank()), part_of(labels, group.rank()));
    by_logits.add(part_of(logits, group.rank()), part_of(labels, group.rank()));
    of_all.add(part_of(predicted, group.rank()), part_of(labels, group.rank()));
    for (ConfusionMatrix* matrix : {&by_class, &by_logits}) {
      matrix->reduce(group);
      EXPECT_TRUE(matrix->value().equal(expected)) << matrix->value();
    }
    EXPECT_THAT(refusal_of([&] { of_all.reduce(group); }),
                HasSubstr("from 0 to 2, got 1 pairs with others on all ranks"));
    EXPECT_THAT(refusal_of([&] { of_all.add(torch::ones({2, 4}), torch::ones({2})); }),
                HasSubstr("got Float [2, 4] and [2]"));
  });
  ConfusionMatrix binary(2);
  binary.add(torch::tensor({true, false}), torch::tensor({1, 1}));
  EXPECT_TRUE(binary.value().equal(torch::tensor({0, 0, 1, 1}).view({2, 2})));
}

// A program's own metrics.
struct RootMeanSquare : SumMetric {
  RootMeanSquare() : SumMetric({2}) {}
  void add(const at::Tensor& errors) {
    add_sums(torch::stack({errors.square().sum(), torch::tensor(errors.numel() * 1.0)}));
  }
  double value() const { return (sums()[0] / sums()[1]).sqrt().item<double>(); }
};

struct MeanIou : ConfusionMatrix {
  using ConfusionMatrix::ConfusionMatrix;
  double mean() const {
    const at::Tensor counts = value().to(torch::kDouble);
    const at::Tensor both = counts.diagonal();
    return (both / (counts.sum(0) + counts.sum(1) - both)).mean().item<double>();
  }
};

TEST(Metric, AProgramAddsItsOwn) {
  run_ranks(2, [](ProcessGroup& group) {
    RootMeanSquare error;
    error.add(torch::full({3}, group.rank() == 0 ? 1.0 : 7.0));
    error.reduce(group);
    EXPECT_EQ(error.value(), 5);
    MeanIou iou(2);
    iou.add(torch::tensor({0, 1}), torch::tensor({0, group.rank()}));
    iou.reduce(group);
    EXPECT_DOUBLE_EQ(iou.mean(), (2.0 / 3 + 1.0 / 2) / 2);
  });
}

}  // namespace
}  // namespace muster::testing
