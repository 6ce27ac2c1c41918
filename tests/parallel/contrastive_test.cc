// Losses over the samples of all ranks, as contrastive ones: what is gathered by gather_sequence
// trains as in one process. Rank 0 is told of a gradient that ends in a collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/tensor/group_functions.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using torch::optim::SGD;

using Gather = std::function<at::Tensor(const at::Tensor&)>;
using Forward = std::function<at::Tensor(const at::Tensor&)>;

constexpr const char* kEndsHere = "got one whose gradient ends here";
constexpr const char* kThroughIt = "expected no backward through the tensor that it has written";

// Each sample's two views are to be nearest to each other among all views of the second kind.
at::Tensor nearest_loss(const at::Tensor& views, const at::Tensor& others, int64_t first) {
  return torch::cross_entropy_loss(views.matmul(others.t()),
                                   torch::arange(first, first + views.size(0)));
}

// A rank's loss is that of its own samples.
void train_contrastively(torch::optim::Optimizer& optimizer,
                         const Forward& forward,
                         const Gather& gather,
                         int rank,
                         int ranks) {
  for (int64_t step = 0; step < 4; ++step) {
    const at::Tensor x = mlp_batch(step).of(rank, ranks).x;
    const at::Tensor views = forward(x), others = gather(forward(x * 0.5));
    optimizer.zero_grad();
    nearest_loss(views, others, rank * x.size(0)).backward();
    optimizer.step();
  }
}

std::vector<at::Tensor> contrastive_of_one_process() {
  auto net = sharded_mlp();
  SGD optimizer(net->parameters(), 0.1);
  const auto forward = [&](const at::Tensor& x) {
    return net->forward(x);
  };
  train_contrastively(optimizer, forward, [](const at::Tensor& x) { return x; }, 0, 1);
  return net->parameters();
}

void expect_as_one_process(const torch::nn::Sequential& net) {
  const auto expected = contrastive_of_one_process();
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(net->parameters()[i], expected[i], 1e-5, 1e-6)) << i;
}

Gather sequence_of(ProcessGroup& group) {
  return [&group](const at::Tensor& x) {
    return gather_sequence(x, group, 0);
  };
}

TEST(Contrastive, OfAWrappedModelTrainsAsOneProcess) {
  run_ranks(3, [](ProcessGroup& group) {
    DistributedDataParallel model(sharded_mlp(), group);
    SGD optimizer(model.parameters(), 0.1);
    const auto forward = [&](const at::Tensor& x) {
      return model(x);
    };
    train_contrastively(optimizer, forward, sequence_of(group), group.rank(), group.size());
    expect_as_one_process(model.module());
  });
}

TEST(Contrastive, OfAFullyShardedModelTrainsAsOneProcess) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    SGD optimizer(sharded.parameters(), 0.1);
    const auto forward = [&](const at::Tensor& x) {
      return model(x);
    };
    train_contrastively(optimizer, forward, sequence_of(group), group.rank(), group.size());
    const auto whole = sharded.whole_parameters();
    expect_as_one_process(net);
  });
}

// What two ranks print in three steps whose outputs `use` makes a loss of.
std::string printed_with_loss(
    const std::function<at::Tensor(ProcessGroup&, const at::Tensor&)>& use) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    for (int64_t step = 0; step < 3; ++step)
      use(group, net->forward(mlp_batch(step).of(group.rank(), group.size()).x)).backward();
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(UnseenGraph, OfWhatIsGatheredIsSaidOnce) {
  const std::string printed = printed_with_loss([](ProcessGroup& group, const at::Tensor& y) {
    const at::Tensor all = torch::empty({y.size(0) * group.size(), y.size(1)});
    group.all_gather(all, y);
    return nearest_loss(y, all, group.rank() * y.size(0));
  });
  EXPECT_EQ(times(printed, kEndsHere), 1U) << printed;
  EXPECT_THAT(printed, HasSubstr("all_gather: "));
}

TEST(UnseenGraph, OfAMeanThatIsReducedInPlaceIsSaidOnce) {
  const std::string printed = printed_with_loss([](ProcessGroup& group, const at::Tensor& y) {
    const at::Tensor mean = y.mean(0);
    group.all_reduce(mean, ReduceOp::avg);
    return (y - mean).square().mean();
  });
  EXPECT_EQ(times(printed, kThroughIt), 1U) << printed;
  EXPECT_THAT(printed, HasSubstr("all_reduce: "));
}

TEST(UnseenGraph, OfALossThatIsShownIsNot) {
  const std::string printed = printed_with_loss([](ProcessGroup& group, const at::Tensor& y) {
    const at::Tensor loss = y.square().mean(), shown = loss.detach().clone(), norm = y.norm();
    group.all_reduce(shown);
    group.all_reduce(norm);  // no backward comes through it
    const at::Tensor all = torch::empty({group.size()});
    group.all_gather(all, loss.detach().reshape({1}));
    return loss;
  });
  EXPECT_THAT(printed, Not(HasSubstr(kEndsHere)));
  EXPECT_THAT(printed, Not(HasSubstr(kThroughIt)));
}

}  // namespace
}  // namespace muster::testing
