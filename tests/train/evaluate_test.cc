#include "muster/train/evaluate.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/dataset.h"
#include "muster/data/distributed_sampler.h"
#include "muster/data/loader.h"
#include "muster/data/sample_order.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

struct RankContext {  // what evaluate() asks of a muster::Context
  ProcessGroup& group;
  ProcessGroup& process_group() { return group; }
};

TEST(Evaluate, CountsEverySampleOnceWhateverTheRanks) {
  const TensorDataset data(torch::arange(11).to(torch::kFloat).unsqueeze(1), torch::arange(11));
  for (const int ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      DistributedSampler sampler(
          11, {.num_replicas = group.size(), .rank = group.rank(), .shuffle = false, .pad = false});
      DataLoader loader(data, sampler, {.batch_size = 2});
      RankContext ctx{group};
      torch::nn::Identity net;
      const double each = evaluate(
          ctx, net, loader, [](auto& net, const auto& batch) { return net(batch.features); });
      EXPECT_DOUBLE_EQ(each, 5);
      const double mean = evaluate(ctx, net, loader, [](auto& net, const auto& batch) {
        return net(batch.features).mean();
      });
      EXPECT_DOUBLE_EQ(mean, 5);
    });
  }
}

// A sampler that nobody told its rank, and one that draws by weights: as many samples, and not
// each.
TEST(Evaluate, AsManySamplesAreNotEachOfThem) {
  const TensorDataset data(torch::arange(12).to(torch::kFloat).unsqueeze(1), torch::arange(12));
  const auto said = [&](ProcessGroup& group, DistributedSampler&& sampler) {
    DataLoader loader(data, sampler, {.batch_size = 2});
    RankContext ctx{group};
    torch::nn::Identity net;
    try {
      evaluate(ctx, net, loader, [](auto& net, const auto& batch) { return net(batch.features); });
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  run_ranks(2, [&](ProcessGroup& group) {
    const auto some_twice =
        HasSubstr("each of 12 samples once, got 12, some of them more than once");
    const SamplerOptions no_rank{.num_replicas = 2, .shuffle = false, .pad = false};
    EXPECT_THAT(said(group, DistributedSampler(12, no_rank)), some_twice);
    const SampleOrder drawn = weighted(std::vector<double>(12, 1.0), 12);
    const SamplerOptions own{.num_replicas = 2, .rank = group.rank(), .pad = false};
    EXPECT_THAT(said(group, DistributedSampler(drawn, own)), some_twice);
  });
}

// An evaluation between two epochs of a training is none of its epochs.
TEST(Evaluate, TheTrainingsLoaderKeepsItsPlace) {
  const TensorDataset data(torch::arange(8).to(torch::kFloat).unsqueeze(1), torch::arange(8));
  run_ranks(2, [&](ProcessGroup& group) {
    const auto orders_of = [&](bool evaluates) {
      DistributedSampler sampler(8, {.num_replicas = 2, .rank = group.rank()});
      DataLoader loader(data, sampler, {.batch_size = 2});
      RankContext ctx{group};
      torch::nn::Identity net;
      std::vector<int64_t> order;
      while (loader.epoch() < 3) {
        for (const auto& batch : loader)
          for (const int64_t index : batch.sample_indices)
            order.push_back(index);
        if (evaluates)
          evaluate(ctx, net, loader, [](auto&, const auto& batch) { return batch.features; });
      }
      EXPECT_EQ(loader.position().step, 6);
      return order;
    };
    EXPECT_EQ(orders_of(true), orders_of(false));
  });
}

TEST(Evaluate, AllRanksHaveRankZerosBuffersAndModulesTheirModes) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Sequential net(
        torch::nn::BatchNorm1d(2), torch::nn::Dropout(0.9), torch::nn::Dropout(0.9));
    net[2]->eval();
    net->buffers()[0].fill_(group.rank() == 0 ? 3 : 7);
    {
      const EvaluationMode mode(*net, group);
      EXPECT_FALSE(net->is_training());
      EXPECT_FALSE(net[1]->is_training());
      EXPECT_FALSE(torch::GradMode::is_enabled());
      EXPECT_EQ(net->buffers()[0][0].item<double>(), 3);
    }
    EXPECT_TRUE(torch::GradMode::is_enabled());
    EXPECT_TRUE(net[1]->is_training());
    EXPECT_FALSE(net[2]->is_training());
  });
}

// As between two averages of local SGD.
TEST(Evaluate, ModelsOfEachRanksOwnAreSaid) {
  const TensorDataset data(torch::ones({4, 2}), torch::arange(4));
  const auto printed_with = [&](float apart) {
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](ProcessGroup& group) {
      DistributedSampler sampler(
          4, {.num_replicas = group.size(), .rank = group.rank(), .shuffle = false, .pad = false});
      DataLoader loader(data, sampler, {.batch_size = 2});
      RankContext ctx{group};
      torch::nn::Linear net(2, 1);
      torch::nn::init::constant_(net->weight, 1);
      torch::nn::init::constant_(net->bias, apart * static_cast<float>(group.rank()));
      evaluate(ctx, net, loader, [](auto& net, const auto& batch) {
        return net(batch.features).squeeze(1);
      });
    });
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(printed_with(0.5F), HasSubstr("got other weights on rank 1 in 'bias'"));
  EXPECT_EQ(printed_with(0), "");
}

TEST(Evaluate, RepeatedSamplesAndScoresOfAnotherShapeAreRefused) {
  const TensorDataset data(torch::zeros({3, 4}), torch::arange(3));
  run_ranks(2, [&](ProcessGroup& group) {
    RankContext ctx{group};
    torch::nn::Identity net;
    DistributedSampler padded(3, {.num_replicas = 2, .rank = group.rank(), .shuffle = false});
    DataLoader loader(data, padded, {.batch_size = 2});
    const auto refusal = [&](const auto& score) {
      try {
        evaluate(ctx, net, loader, score);
        return std::string("counted");
      } catch (const Error& error) {
        return std::string(error.what());
      }
    };
    EXPECT_THAT(refusal([](auto&, const auto& batch) { return batch.labels; }),
                HasSubstr("expected each of 3 samples once, got 4 on all ranks together"));
    EXPECT_THAT(refusal([](auto&, const auto& batch) { return batch.features; }),
                HasSubstr("got shape [2, 4]"));
  });
}

TEST(Evaluate, WithoutASampleItIsNoNumber) {
  run_ranks(2, [](ProcessGroup& group) { EXPECT_TRUE(std::isnan(SampleMeans().over(group))); });
}

// Numbers 0 to 49, whose mean is 24.5.
std::string mean_of_numbers(ProcessGroup& group,
                            SamplerOptions sampling,
                            DataLoaderOptions loading) {
  const TensorDataset data(torch::arange(50).to(torch::kDouble), torch::arange(50));
  sampling.num_replicas = group.size();
  sampling.rank = group.rank();
  sampling.shuffle = false;
  DistributedSampler sampler(50, sampling);
  if (!sampling.shares.empty())
    loading.batch_size = sampling.shares[static_cast<size_t>(group.rank())];
  DataLoader loader(data, sampler, loading);
  RankContext ctx{group};
  torch::nn::Identity net;
  try {
    return cat(evaluate(ctx, net, loader, [](auto&, const auto& batch) { return batch.features; }));
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Evaluate, SamplesThatAreLeftOutAreCounted) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      EXPECT_EQ(mean_of_numbers(group, {.pad = false}, {.batch_size = 4}), "24.5");
      const int64_t whole_batches = int64_t{50 + ranks - 1} / ranks / 4 * 4 * ranks;
      EXPECT_THAT(
          mean_of_numbers(group, {}, {.batch_size = 4, .drop_last = true}),
          HasSubstr(cat("each of 50 samples once, got ", whole_batches, " on all ranks together")));
      const auto dropped = mean_of_numbers(group, {.drop_last = true}, {.batch_size = 4});
      if (50 % ranks == 0) {
        EXPECT_EQ(dropped, "24.5");
      } else {
        EXPECT_THAT(dropped, HasSubstr(cat("each of 50 samples once, got ", 50 / ranks * ranks)));
        EXPECT_THAT(dropped,
                    HasSubstr("leaves out none: no drop_last, in the loader or its sampler"));
      }
    });
  }
}

TEST(Evaluate, UnequalSharesCountEverySampleToo) {
  run_ranks(3, [](ProcessGroup& group) {
    EXPECT_EQ(mean_of_numbers(group, {.pad = false, .shares = {3, 2, 1}}, {}), "24.5");
  });
}

struct SomeBad {
  using Example = LabelledExample;
  int64_t size() const { return 20; }
  Example get(int64_t index, Generator&) const {
    if (index % 7 == 3)
      throw std::runtime_error("cannot be read");
    return {torch::full({1}, static_cast<double>(index), torch::kDouble), torch::tensor(index)};
  }
};

TEST(Evaluate, BadSamplesThatAreSkippedAreNoError) {
  run_ranks(2, [](ProcessGroup& group) {
    DistributedSampler sampler(
        20, {.num_replicas = group.size(), .rank = group.rank(), .shuffle = false, .pad = false});
    DataLoader loader(SomeBad(), sampler, {.batch_size = 4, .skip_bad = true});
    RankContext ctx{group};
    torch::nn::Identity net;
    for (int pass = 0; pass < 2; ++pass) {
      const double mean = evaluate(
          ctx, net, loader, [](auto&, const auto& batch) { return batch.features.squeeze(1); });
      EXPECT_DOUBLE_EQ(mean, (190 - 3 - 10 - 17) / 17.0);
    }
  });
}

TEST(Evaluate, ABatchOfNoSamplesAddsNothing) {
  run_ranks(1, [](ProcessGroup& group) {
    SampleMeans means;
    means.add(torch::tensor(2.0), 3);
    means.add(torch::tensor(NAN), 0);
    EXPECT_EQ(means.over(group), 2);
  });
}

}  // namespace
}  // namespace muster::testing
