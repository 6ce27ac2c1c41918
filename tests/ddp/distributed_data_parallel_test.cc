#include "muster/ddp/distributed_data_parallel.h"
#include "muster/data/batch.h"
#include "muster/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include <mutex>

#include "muster/base/error.h"
#include "muster/data/batch.h"
#include "tests/support/ranks.h"
#include "tests/support/seeding.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::nn::Sequential make_net(uint64_t seed) {
  const std::lock_guard lock(seeding);
  torch::manual_seed(seed);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(12, 32));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(32, 5));
  return net;
}

// Weights are made before the ranks start: the seed is the process's.
std::vector<torch::nn::Sequential> nets_of(int world_size) {
  std::vector<torch::nn::Sequential> nets;
  nets.reserve(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank)
    nets.push_back(make_net(10 + static_cast<uint64_t>(rank)));
  return nets;
}

struct Data {
  at::Tensor features, labels;
};

Data make_data(int64_t samples) {
  torch::manual_seed(3);
  return {torch::randn({samples, 12}), torch::randint(5, {samples})};
}

at::Tensor mean_loss(const at::Tensor& output, const at::Tensor& labels) {
  return torch::cross_entropy_loss(output, labels);
}

// The gradients of one process on the whole batch, with rank 0's weights.
std::vector<at::Tensor> joined_gradients(const Data& data) {
  auto net = make_net(10);
  mean_loss(net->forward(data.features), data.labels).backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : net->parameters())
    gradients.push_back(parameter.grad().clone());
  return gradients;
}

void expect_close(const std::vector<at::Tensor>& parameters,
                  const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(parameters[i].grad().allclose(expected[i], 1e-5, 1e-7)) << "parameter " << i;
  }
}

class Ddp : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  int world_size() const { return std::get<0>(GetParam()); }
  DdpOptions options() const { return {.gradient_as_bucket_view = std::get<1>(GetParam())}; }
};

TEST(DistributedDataParallel, TakesABatchOfTensorsIntoASequential) {
  run_ranks(2, [](ProcessGroup& group) {
    const torch::nn::Sequential net(torch::nn::Linear(3, 2));
    DistributedDataParallel model(net, group);
    const Batch<at::Tensor> batch{torch::ones({4, 3}), 1, true, 4};
    EXPECT_TRUE(model(batch).equal(model(torch::ones({4, 3}))));
    Batch<at::Tensor> changing{torch::zeros({4, 3}), 1, true, 4};
    EXPECT_TRUE(model(changing).equal(model(torch::zeros({4, 3}))));
  });
}

TEST_P(Ddp, GradientsEqualOneProcessOnTheJoinedBatch) {
  const Data data = make_data(24);
  const auto expected = joined_gradients(data);
  const auto nets = nets_of(world_size());
  run_ranks(world_size(), [&](ProcessGroup& group) {
    DistributedDataParallel model(nets[static_cast<size_t>(group.rank())], group, options());
    const int64_t share = 24 / group.size();
    for (int step = 0; step < 3; ++step) {  // the Reducer cuts its buckets anew after the first
      const auto mine = data.features.slice(0, group.rank() * share, (group.rank() + 1) * share);
      const auto labels = data.labels.slice(0, group.rank() * share, (group.rank() + 1) * share);
      mean_loss(model(mine), labels).backward();
      expect_close(model.parameters(), expected);
      for (auto& parameter : model.parameters())
        parameter.mutable_grad().reset();
    }
  });
}

TEST_P(Ddp, MicroBatchesWithOneReductionEqualTheJoinedBatch) {
  // 11 samples a rank in micro-batches of 2, three to a step: windows of 6 and of 5, the last
  // micro-batch alone.
  const int64_t share = 11, micro = 2, accumulate = 3;
  const Data data = make_data(share * world_size());
  const auto nets = nets_of(world_size());
  std::vector<std::vector<at::Tensor>> expected;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 6}, {6, 11}}) {
    std::vector<at::Tensor> features, labels;
    for (int rank = 0; rank < world_size(); ++rank) {
      features.push_back(data.features.slice(0, rank * share + begin, rank * share + end));
      labels.push_back(data.labels.slice(0, rank * share + begin, rank * share + end));
    }
    expected.push_back(joined_gradients({torch::cat(features), torch::cat(labels)}));
  }
  run_ranks(world_size(), [&](ProcessGroup& group) {
    DistributedDataParallel model(nets[static_cast<size_t>(group.rank())], group, options());
    const TensorDataset mine(
        data.features.slice(0, group.rank() * share, (group.rank() + 1) * share),
        data.labels.slice(0, group.rank() * share, (group.rank() + 1) * share));
    DataLoader loader(mine, {.batch_size = micro, .accumulate = accumulate});
    for (int epoch = 0; epoch < 2; ++epoch) {
      size_t windows = 0;
      for (const auto& batch : loader) {
        const auto guard = model.no_sync_if(!batch.last);
        (mean_loss(model(batch.features), batch.labels) * batch.weight).backward();
        if (!batch.last)
          continue;
        expect_close(model.parameters(), expected.at(windows++));
        for (auto& parameter : model.parameters())
          parameter.mutable_grad().reset();
      }
      EXPECT_EQ(windows, 2U);
    }
  });
}

// Rank r takes r + 1 samples of every global batch, as the faster devices would; a last one is
// smaller.
TEST_P(Ddp, UnequalSharesEqualOneProcessOnTheGlobalBatch) {
  std::vector<int64_t> shares;
  shares.reserve(static_cast<size_t>(world_size()));
  for (int rank = 0; rank < world_size(); ++rank)
    shares.push_back(rank + 1);
  const auto global = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  const int64_t length = 5 * global + std::max<int64_t>(1, global - 1);
  const Data data = make_data(length);
  const auto nets = nets_of(world_size());
  for (const int64_t accumulate : {1, 2}) {
    std::vector<std::vector<at::Tensor>> expected;
    for (int64_t begin = 0; begin < length; begin += accumulate * global) {
      const int64_t end = std::min(begin + accumulate * global, length);
      expected.push_back(
          joined_gradients({data.features.slice(0, begin, end), data.labels.slice(0, begin, end)}));
    }
    run_ranks(world_size(), [&](ProcessGroup& group) {
      DistributedDataParallel model(nets[static_cast<size_t>(group.rank())], group, options());
      DistributedSampler sampler(
          length,
          {.num_replicas = world_size(), .rank = group.rank(), .shuffle = false, .shares = shares});
      DataLoader loader(TensorDataset(data.features, data.labels),
                        sampler,
                        {.batch_size = group.rank() + 1, .accumulate = accumulate});
      size_t steps = 0;
      for (const auto& batch : loader) {
        const auto guard = model.no_sync_if(!batch.last);
        (mean_loss(model(batch.features), batch.labels) * batch.weight).backward();
        if (!batch.last)
          continue;
        expect_close(model.parameters(), expected.at(steps++));
        for (auto& parameter : model.parameters())
          parameter.mutable_grad().reset();
      }
      EXPECT_EQ(steps, expected.size());
    });
  }
}

TEST_P(Ddp, ZeroGradWorksBothWays) {
  const Data data = make_data(8);
  const auto nets = nets_of(world_size());
  run_ranks(world_size(), [&](ProcessGroup& group) {
    DistributedDataParallel model(nets[static_cast<size_t>(group.rank())], group, options());
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (const bool to_none : {true, false, true, false}) {
      mean_loss(model(data.features), data.labels).backward();
      optimizer.step();
      EXPECT_NO_THROW(optimizer.zero_grad(to_none));
      for (const auto& parameter : model.parameters()) {
        EXPECT_EQ(parameter.grad().defined(), !to_none);
        if (to_none)
          continue;
        EXPECT_EQ(parameter.grad().abs().sum().item<float>(), 0);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         Ddp,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_views" : "_copies");
                         });

TEST(DdpConstruction, BroadcastsRankZerosParametersAndBuffers) {
  std::vector<torch::nn::BatchNorm1d> nets{torch::nn::BatchNorm1d(4), torch::nn::BatchNorm1d(4)};
  {
    const torch::NoGradGuard no_grad;
    nets[1]->weight.fill_(5);
    nets[1]->running_mean.fill_(6);
    nets[0]->running_mean.fill_(2);
  }
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(nets[static_cast<size_t>(group.rank())], group);
    EXPECT_EQ(model.module()->weight.sum().item<float>(), 4);
    EXPECT_EQ(model.module()->running_mean.sum().item<float>(), 8);
    // Statistics drift apart in training; each forward starts from rank 0's.
    model(torch::ones({3, 4}) * group.rank()).sum().backward();
    const auto before =
        group.all_gather_bytes(std::to_string(model.module()->running_mean[0].item<float>()));
    EXPECT_NE(before[0], before[1]);
    model(torch::zeros({3, 4}));
    const auto after =
        group.all_gather_bytes(std::to_string(model.module()->running_mean[0].item<float>()));
    EXPECT_EQ(after[0], after[1]);
  });
}

struct AllBuffersImpl : torch::nn::Module {
  explicit AllBuffersImpl(int value) {
    for (const auto type : {at::kShort,
                            at::kBool,
                            at::kUInt16,
                            at::kUInt32,
                            at::kUInt64,
                            at::kComplexFloat,
                            at::kComplexDouble,
                            at::kFloat8_e5m2,
                            at::kFloat8_e4m3fn})
      register_buffer(c10::toString(type), torch::full({3}, value).to(type));
  }
  at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
  at::Tensor w = register_parameter("w", torch::ones({2}));
};
TORCH_MODULE(AllBuffers);

TEST(DdpConstruction, BuffersOfEveryTypeAreBroadcast) {
  for (const char* backend : {"gloo", "shm"}) {
    run_ranks(2,
              [&](ProcessGroup& group) {
                AllBuffers net(group.rank());
                const auto expect_rank_zeros = [&] {
                  for (const auto& buffer : net->named_buffers())
                    EXPECT_TRUE(buffer.value().view(at::kByte).eq(0).all().item<bool>())
                        << buffer.key();
                };
                DistributedDataParallel model(net, group);
                expect_rank_zeros();
                for (at::Tensor& buffer : net->buffers())
                  buffer.view(at::kByte).fill_(group.rank());
                model(torch::ones({2}));
                expect_rank_zeros();
              },
              {.backend = backend});
  }
}

TEST(DdpConstruction, DifferentModelsNameTheFirstDifference) {
  const auto check = [](torch::nn::Sequential a,
                        torch::nn::Sequential b,
                        const ::testing::Matcher<std::string>& message) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      DistributedDataParallel model(group.rank() == 0 ? a : b, group);
    });
    for (const auto& failure : failures)
      EXPECT_THAT(message_of(failure), message);
  };
  const auto net = [](std::vector<int64_t> sizes) {
    torch::nn::Sequential layers;
    for (size_t i = 0; i + 1 < sizes.size(); ++i)
      layers->push_back(torch::nn::Linear(sizes[i], sizes[i + 1]));
    return layers;
  };
  check(net({4, 5, 6}),
        net({4, 5, 7}),
        AllOf(HasSubstr("1.weight: Float [6, 5]"),
              HasSubstr("1.weight: Float [7, 5]"),
              HasSubstr("rank 1")));
  check(net({4, 5}), net({4, 5, 6}), AllOf(HasSubstr("nothing on rank 0"), HasSubstr("1.weight")));
  auto frozen = net({4, 5});
  frozen->parameters()[0].set_requires_grad(false);
  check(net({4, 5}), frozen, HasSubstr("(frozen)"));
  // Same shapes, other names: c10d's own check passes this.
  torch::nn::Sequential first, second;
  first->push_back("a", torch::nn::Linear(3, 3));
  second->push_back("b", torch::nn::Linear(3, 3));
  check(first, second, AllOf(HasSubstr("a.weight"), HasSubstr("b.weight")));
}

TEST(DdpConstruction, DifferentModelsInASubGroupAreOfRanksOfTheJob) {
  run_ranks(3, [](ProcessGroup& group) {
    auto pair = group.new_group({2, 1});
    if (!pair)
      return;
    try {
      DistributedDataParallel model(torch::nn::Linear(2, group.rank()), *pair);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(),
                  AllOf(HasSubstr("[2, 2]' on rank 2"), HasSubstr("[1, 2]' on rank 1")));
    }
  });
}

TEST(DdpConstruction, RefusesWhatCannotBeTrained) {
  const auto failure_of = [](auto make) {
    return message_of(failures_of_ranks(1, [&](ProcessGroup& group) { make(group); })[0]);
  };
  EXPECT_THAT(failure_of([](ProcessGroup& group) {
                DistributedDataParallel model(torch::nn::Sequential(torch::nn::Tanh()), group);
              }),
              AllOf(HasSubstr("at least one parameter"),
                    HasSubstr("such as a teacher, without DistributedDataParallel")));
  EXPECT_THAT(failure_of([](ProcessGroup& group) {
                DistributedDataParallel model(torch::nn::Linear(2, 2), group, {.device_ids = {3}});
              }),
              AllOf(HasSubstr("[3]"), HasSubstr("cpu"), HasSubstr("ctx.device().index()")));
  EXPECT_THAT(failure_of([](ProcessGroup& group) {
                torch::nn::Linear elsewhere(torch::nn::LinearOptions(2, 2));
                elsewhere->weight =
                    elsewhere->register_parameter("elsewhere", torch::zeros({2, 2}, torch::kMeta));
                DistributedDataParallel model(elsewhere, group);
              }),
              AllOf(HasSubstr("'elsewhere'"), HasSubstr("meta")));
}

// The arrow leads to the module, whose forward the wrapper does not see.
TEST(DdpConstruction, TheModulesOwnForwardNamesTheWrappers) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(torch::nn::Linear(2, 2), group);
    model->forward(torch::ones({1, 2})).sum().backward();
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("call model(batch) or model.forward(batch): model->forward(batch) is"));
}

// The line that Python has for GPUs is right on the CPU too.
TEST(DdpConstruction, TheRanksOwnDeviceIsRightOnEveryKindOfDevice) {
  const auto failures = failures_of_ranks(1, [](ProcessGroup& group) {
    const c10::DeviceIndex own = group.device().index();
    DistributedDataParallel model(torch::nn::Linear(2, 2), group, {.device_ids = {own}});
    model(torch::ones({1, 2})).sum().backward();
  });
  EXPECT_EQ(failures[0], nullptr);
  for (const auto& wrong : std::vector<std::vector<c10::DeviceIndex>>{{0}, {-1, -1}}) {
    const auto refused = failures_of_ranks(1, [&](ProcessGroup& group) {
      DistributedDataParallel model(torch::nn::Linear(2, 2), group, {.device_ids = wrong});
    });
    EXPECT_THAT(message_of(refused[0]),
                HasSubstr("expected device_ids empty or this rank's device"));
  }
}

}  // namespace
}  // namespace muster::testing
