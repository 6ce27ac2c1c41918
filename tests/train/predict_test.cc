// Predictions in the order of the data set, from ranks with different numbers of batches: the bits
// of one process.
#include "muster/train/predict.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/train/evaluate_program.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr auto kForward = [](auto& net, const auto& batch) {
  return net(batch.features);
};

// Each sample by itself, so that the bits are those of any batch.
constexpr auto kRowByRow = [](auto& net, const auto& batch) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < batch.size(); ++i)
    rows.push_back(net(batch.features.slice(0, i, i + 1)));
  return torch::cat(rows);
};

at::Tensor predicted_by_one(int64_t samples) {
  ScoredNet net = scored_net();
  net->eval();
  const torch::NoGradGuard no_grad;
  struct {
    at::Tensor features;
    int64_t size() const { return features.size(0); }
  } all{scored_data(samples).features()};
  return kRowByRow(net, all);
}

TEST(Predict, HasTheBitsOfOneProcessInTheOrderOfTheData) {
  for (const int64_t samples : {1, 3, 13, 40}) {
    const at::Tensor expected = predicted_by_one(samples);
    for (const int ranks : {1, 2, 3, 4}) {
      run_ranks(ranks, [&](ProcessGroup& group) {
        ScoredNet net = scored_net();
        auto loader = loader_of(group, scored_data(samples), {.batch_size = 4});
        const at::Tensor bare = predict(group, net, loader, kRowByRow);
        DistributedDataParallel<ScoredNet> model(net, group);
        const at::Tensor wrapped = predict(group, model, loader, kRowByRow);
        EXPECT_TRUE(net->is_training());
        if (group.rank() == 0) {
          EXPECT_TRUE(bare.equal(expected));
          EXPECT_TRUE(wrapped.equal(expected));
        } else {
          EXPECT_FALSE(bare.defined());
        }
      });
    }
  }
}

TEST(Predict, WithShuffledSamplesWorkersAndUnequalShares) {
  const at::Tensor expected = predicted_by_one(30);
  run_ranks(3, [&](ProcessGroup& group) {
    ScoredNet net = scored_net();
    const SamplerOptions sampling{.num_replicas = group.size(),
                                  .rank = group.rank(),
                                  .seed = 5,
                                  .pad = false,
                                  .shares = {1, 4, 2}};
    const auto data = std::make_shared<const TensorDataset>(scored_data(30));
    DataLoader loader(
        data,
        std::make_shared<DistributedSampler>(30, sampling),
        {.batch_size = sampling.shares[static_cast<size_t>(group.rank())], .workers = 2});
    for (int epoch = 0; epoch < 2; ++epoch) {
      const at::Tensor got = predict(group, net, loader, kRowByRow);
      if (group.rank() == 0) {
        EXPECT_TRUE(got.equal(expected));
      }
    }
  });
}

TEST(Predict, OfAFullyShardedModel) {
  for (const int ranks : {1, 2, 4}) {
    for (const int64_t samples : {3, 13}) {
      const at::Tensor expected = predicted_by_one(samples);
      run_ranks(ranks, [&](ProcessGroup& group) {
        FullySharded sharded(group);
        auto model = sharded.wrap(scored_net());
        auto loader = loader_of(group, scored_data(samples), {.batch_size = 4});
        const at::Tensor got = predict(group, model, loader, kForward);
        if (group.rank() == 0) {
          EXPECT_TRUE(got.allclose(expected, 1e-5, 1e-6));
        }
      });
    }
  }
}

struct Boxes {
  at::Tensor corners, label;
};

TEST(Predict, SeveralOutputsOfASample) {
  run_ranks(3, [](ProcessGroup& group) {
    torch::nn::Identity net;
    auto loader =
        loader_of(group, TensorDataset(torch::arange(7), torch::arange(7)), {.batch_size = 1});
    const auto [twice, even] = predict(group, net, loader, [](auto& net, const auto& batch) {
      const at::Tensor x = net(batch.features);
      return std::tuple(x * 2, x.remainder(2).eq(0));
    });
    const Boxes boxes = predict(group, net, loader, [](auto&, const auto& batch) {
      return Boxes{batch.features.unsqueeze(1).expand({-1, 4}), batch.labels};
    });
    if (group.rank() != 0)
      return;
    EXPECT_TRUE(twice.equal(torch::arange(7) * 2));
    EXPECT_TRUE(even.equal(torch::arange(7).remainder(2).eq(0)));
    EXPECT_TRUE(boxes.corners.equal(torch::arange(7).unsqueeze(1).expand({7, 4})));
    EXPECT_TRUE(boxes.label.equal(torch::arange(7)));
  });
}

// No more than a batch of each rank is in memory, whatever the size of the data.
TEST(Predict, PiecesComeInOrderAndOneAtATime) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup& group) {
      torch::nn::Identity net;
      auto loader = loader_of(
          group, TensorDataset(torch::arange(101), torch::arange(101)), {.batch_size = 3});
      int64_t next = 0;
      const auto write = [&](const auto& piece) {
        EXPECT_EQ(group.rank(), 0);
        EXPECT_LE(piece.outputs.size(0), 3 * group.size());
        EXPECT_EQ(piece.indices.front(), next);
        EXPECT_TRUE(
            piece.outputs.equal(torch::arange(next, next + std::ssize(piece.indices)) * 10));
        next += std::ssize(piece.indices);
      };
      predict(
          group, net, loader, [](auto&, const auto& batch) { return batch.features * 10; }, write);
      EXPECT_EQ(next, group.rank() == 0 ? 101 : 0);
    });
  }
}

// As where each batch is padded to the longest of its own samples.
TEST(Predict, BatchesMayHaveOtherShapes) {
  const auto forward = [](auto&, const auto& batch) {
    const at::Tensor x = batch.features;
    const int64_t length = x.max().template item<int64_t>() / 10 + 1;
    return std::tuple(x.unsqueeze(1).expand({-1, length}), torch::zeros({x.size(0), 0, length}));
  };
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool shuffle : {false, true}) {
      run_ranks(ranks, [&](ProcessGroup& group) {
        torch::nn::Identity net;
        const auto data =
            std::make_shared<const TensorDataset>(torch::arange(101), torch::arange(101));
        const SamplerOptions sampling{
            .num_replicas = group.size(), .rank = group.rank(), .shuffle = shuffle, .pad = false};
        DataLoader loader(
            data, std::make_shared<DistributedSampler>(101, sampling), {.batch_size = 3});
        std::vector<int64_t> indices;
        predict(group, net, loader, forward, [&](const auto& piece) {
          const auto& [numbers, empty] = piece.outputs;
          const int64_t length = numbers.size(1);
          indices.insert(indices.end(), piece.indices.begin(), piece.indices.end());
          EXPECT_GE(10 * length, piece.indices.back() + 1);
          EXPECT_TRUE(numbers.equal(
              torch::tensor(piece.indices).unsqueeze(1).expand({numbers.size(0), length})));
          EXPECT_EQ(empty.sizes(), (std::vector<int64_t>{numbers.size(0), 0, length}));
        });
        if (group.rank() != 0)
          return;
        ASSERT_EQ(indices.size(), 101U);
        for (int64_t i = 0; i < 101; ++i)
          EXPECT_EQ(indices[static_cast<size_t>(i)], i);
      });
    }
  }
}

struct SomeUnreadable {
  using Example = LabelledExample;
  int64_t size() const { return 20; }
  Example get(int64_t index, muster::Generator&) const {
    if (index % 7 == 3 || index == 19)
      throw std::runtime_error("cannot be read");
    return {torch::full({1}, index), torch::tensor(index)};
  }
};

TEST(Predict, SamplesThatCannotBeReadAreMissingFromThePieces) {
  run_ranks(3, [](ProcessGroup& group) {
    torch::nn::Identity net;
    auto loader = loader_of(group, SomeUnreadable(), {.batch_size = 1, .skip_bad = true});
    const auto forward = [](auto&, const auto& batch) {
      return batch.features;
    };
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<int64_t> indices;
      predict(group, net, loader, forward, [&](const auto& piece) {
        indices.insert(indices.end(), piece.indices.begin(), piece.indices.end());
        EXPECT_TRUE(piece.outputs.equal(torch::tensor(piece.indices).unsqueeze(1)));
      });
      if (group.rank() == 0) {
        EXPECT_THAT(indices,
                    ::testing::ElementsAre(0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 18));
      }
    }
    try {
      predict(group, net, loader, forward);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("which cannot be read"));
    }
  });
}

std::vector<std::string> refusals_of(int ranks, const std::function<void(ProcessGroup&)>& body) {
  std::vector<std::string> said;
  for (const auto& failure : failures_of_ranks(ranks, body))
    said.push_back(message_of(failure));
  return said;
}

void predict_numbers(ProcessGroup& group,
                     SamplerOptions sampling,
                     const std::function<at::Tensor(const at::Tensor&)>& forward,
                     const std::function<void(const std::vector<int64_t>&)>& write = {},
                     bool in_pieces = true) {
  torch::nn::Identity net;
  sampling.num_replicas = group.size();
  sampling.rank = group.rank();
  sampling.shuffle = false;
  DistributedSampler sampler(11, sampling);
  DataLoader loader(
      TensorDataset(torch::arange(11), torch::arange(11)), sampler, {.batch_size = 2});
  const auto of_batch = [&](auto&, const auto& batch) {
    return forward(batch.features);
  };
  if (!in_pieces) {
    predict(group, net, loader, of_batch);
    return;
  }
  predict(group, net, loader, of_batch, [&](const auto& piece) {
    if (write)
      write(piece.indices);
  });
}

TEST(Predict, WhatOneRankThrowsIsThrownOnAll) {
  const auto same = [](const at::Tensor& x) {
    return x;
  };
  for (const std::string& said : refusals_of(3, [&](ProcessGroup& group) {
         predict_numbers(group, {.pad = false}, [&](const at::Tensor& x) {
           if (group.rank() == 1 && x[0].item<int64_t>() > 5)
             throw std::runtime_error("no prediction for 7");
           return x;
         });
       }))
    EXPECT_THAT(said, HasSubstr("no prediction for 7"));
  for (const std::string& said : refusals_of(3, [&](ProcessGroup& group) {
         predict_numbers(group, {.pad = false}, same, [](const std::vector<int64_t>& indices) {
           if (indices.back() == 10)  // the last piece
             throw std::runtime_error("the disk is full");
         });
       }))
    EXPECT_THAT(said, HasSubstr("the disk is full"));
  for (const std::string& said :
       refusals_of(2, [&](ProcessGroup& group) { predict_numbers(group, {}, same); }))
    EXPECT_THAT(said, HasSubstr("each of 11 samples once, got sample 0 twice"));
  for (const std::string& said : refusals_of(
           2, [&](ProcessGroup& group) { predict_numbers(group, {.drop_last = true}, same); }))
    EXPECT_THAT(said, HasSubstr("each of 11 samples once, got 10 on all ranks together"));
  for (const std::string& said : refusals_of(2, [&](ProcessGroup& group) {
         predict_numbers(group, {.pad = false}, [](const at::Tensor& x) { return x.sum(); });
       }))
    EXPECT_THAT(said, HasSubstr("a row for each of 2 samples, got shape []"));
  const auto of_other_shapes = [](const at::Tensor& x) {
    return torch::zeros({x.size(0), x[0].item<int64_t>() + 1});
  };
  for (const int ranks : {1, 2})
    for (const std::string& said : refusals_of(ranks, [&](ProcessGroup& group) {
           predict_numbers(group, {.pad = false}, of_other_shapes, {}, /*in_pieces=*/false);
         }))
      EXPECT_THAT(said, HasSubstr("rows of one type and shape in all batches"));
  for (const std::string& said : refusals_of(1, [&](ProcessGroup& group) {
         predict_numbers(group, {.pad = false}, [](const at::Tensor& x) {
           return x[0].item<int64_t>() == 2 ? x.to(torch::kFloat) : x;
         });
       }))
    EXPECT_THAT(said, HasSubstr("rows of one type in all batches, got Long and Float"));
}

}  // namespace
}  // namespace muster::testing
