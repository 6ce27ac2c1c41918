// Modules of one shape that ranks run in different orders: an error, where their weights were
// mixed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

class UnitsApart : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends,
                         UnitsApart,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(UnitsApart, OfOneShapeInDifferentOrders) {
  const auto failures = failures_of_ranks(2,
                                          [](ProcessGroup& group) {
                                            FullySharded sharded(group, {.prefetch = false});
                                            torch::nn::Linear a(4, 4), b(4, 4);
                                            for (const auto& layer : {a, b})
                                              for (const auto& parameter : layer->parameters())
                                                parameter.data().fill_(0.5);
                                            auto first = sharded.wrap(a), second = sharded.wrap(b);
                                            const auto x = torch::ones({2, 4});
                                            group.rank() == 0 ? second(first(x)) : first(second(x));
                                          },
                                          {.backend = GetParam()});
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("expected the same call on every rank"));
}

}  // namespace
}  // namespace muster::testing
