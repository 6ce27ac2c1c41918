// One backward of several forwards with find_unused_parameters: right where they use the same
// parameters, and an error that names the next step where they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <tuple>
#include <vector>

#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Uses { left, right, both };

struct ForkImpl : torch::nn::Module {
  ForkImpl() {
    register_module("left", left);
    register_module("right", right);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.fill_(0.25);
  }
  at::Tensor forward(const at::Tensor& x, Uses uses) {
    if (uses == Uses::both)
      return left(x) + right(x);
    return uses == Uses::left ? left(x) : right(x);
  }
  torch::nn::Linear left{3, 2}, right{3, 2};
};
TORCH_MODULE(Fork);

// The mean of the ranks' gradients of both forwards. A parameter that none uses has none.
void expect_those_of_both(ProcessGroup& group, const Fork& got, Uses first, Uses last) {
  Fork same;
  const auto loss = square_loss(same(batch_of(group.rank(), 0), first)) +
                    square_loss(same(batch_of(group.rank(), 1), last));
  const auto gradients =
      torch::autograd::grad({loss}, same->parameters(), {}, {}, false, /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& found = got->parameters()[i].grad();
    EXPECT_EQ(found.defined(), gradients[i].defined()) << i;
    if (!gradients[i].defined())
      continue;
    const auto mean = gradients[i].contiguous();
    group.all_reduce(mean);
    EXPECT_TRUE(found.allclose(mean / group.size())) << i;
  }
}

using BothUses = std::tuple<Uses, Uses, bool>;  // the first and the last forward's, and views

class SeveralForwards : public ::testing::TestWithParam<BothUses> {};
INSTANTIATE_TEST_SUITE_P(Uses,
                         SeveralForwards,
                         ::testing::Combine(::testing::Values(Uses::left, Uses::right, Uses::both),
                                            ::testing::Values(Uses::left, Uses::both),
                                            ::testing::Bool()));

TEST_P(SeveralForwards, AreReducedOrNamed) {
  const auto [first, last, as_views] = GetParam();
  const bool are_reduced = first == last || last == Uses::both;
  const auto failures = failures_of_ranks(2, [&, first = first, last = last](ProcessGroup& group) {
    Fork net;
    DistributedDataParallel model(
        net, group, {.find_unused_parameters = true, .gradient_as_bucket_view = as_views});
    for (int step = 0; step < 3; ++step) {
      drop_gradients(*net);
      const auto loss = square_loss(model(batch_of(group.rank(), 0), first));
      (loss + square_loss(model(batch_of(group.rank(), 1), last))).backward();
      expect_those_of_both(group, net, first, last);
    }
    group.shutdown();
  });
  for (const auto& failure : failures) {
    if (are_reduced) {
      EXPECT_EQ(message_of(failure), "");
      continue;
    }
    EXPECT_THAT(message_of(failure),
                AllOf(HasSubstr("which the last forward does not use (rank "),
                      HasSubstr("inside no_sync()"),
                      Not(HasSubstr("\n"))));
  }
}

// What the error names.
TEST_P(SeveralForwards, AllButTheLastMayBeInsideNoSync) {
  const auto [first, last, as_views] = GetParam();
  run_ranks(2, [&, first = first, last = last](ProcessGroup& group) {
    Fork net;
    DistributedDataParallel model(
        net, group, {.find_unused_parameters = true, .gradient_as_bucket_view = as_views});
    for (int step = 0; step < 3; ++step) {
      drop_gradients(*net);
      {
        const auto guard = model.no_sync();
        square_loss(model(batch_of(group.rank(), 0), first)).backward();
      }
      square_loss(model(batch_of(group.rank(), 1), last)).backward();
      expect_those_of_both(group, net, first, last);
    }
  });
}

}  // namespace
}  // namespace muster::testing
