// What DistributedDataParallel adds to its group's traffic(): its gradients, as the Reducer and
// hooks send them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/ddp/hooks.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

constexpr int64_t kGradientBytes = 4 * (10 * 20 + 20 + 20 * 5 + 5);

struct StepTraffic {
  int64_t calls, bytes;
};

// Of a step, from the third on: the first two have the Reducer's own beginnings.
StepTraffic traffic_of_step(ProcessGroup& group, DdpOptions options, bool reduces = true) {
  options.check_steps = false;
  torch::nn::Sequential net(torch::nn::Linear(10, 20), torch::nn::Linear(20, 5));
  DistributedDataParallel ddp(net, group, options);
  const auto step = [&] {
    ddp.forward(torch::ones({4, 10})).sum().backward();
  };
  for (int i = 0; i < 2; ++i)
    step();
  std::optional<NoSync> local;
  if (!reduces)
    local.emplace(ddp.reducer(), true);
  const Traffic before = group.traffic();
  for (int i = 0; i < 3; ++i)
    step();
  const Traffic after = group.traffic();
  EXPECT_EQ((after.bytes - before.bytes) % 3, 0);
  return {.calls = (after.calls - before.calls) / 3, .bytes = (after.bytes - before.bytes) / 3};
}

class DdpTraffic : public ::testing::TestWithParam<const char*> {
 protected:
  static void on_ranks(const std::function<void(ProcessGroup&)>& body) {
    run_ranks(2, body, {.backend = GetParam()});
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DdpTraffic, ::testing::Values("shm", "gloo"));

TEST_P(DdpTraffic, IsTheGradients) {
  on_ranks([](ProcessGroup& group) {
    const StepTraffic one = traffic_of_step(group, {});
    EXPECT_EQ(one.calls, 1);
    EXPECT_EQ(one.bytes, kGradientBytes);
    // A bucket ends with the parameter that goes over its size: of 105 bytes, each layer is one.
    const StepTraffic small = traffic_of_step(group, {.bucket_cap_mb = 0.0001});
    EXPECT_EQ(small.calls, 2);
    EXPECT_EQ(small.bytes, kGradientBytes);
    EXPECT_EQ(traffic_of_step(group, {}, /*reduces=*/false).bytes, 0);
  });
}

TEST_P(DdpTraffic, HasTheMapOfUnusedParameters) {
  on_ranks([](ProcessGroup& group) {
    const StepTraffic step = traffic_of_step(group, {.find_unused_parameters = true});
    EXPECT_EQ(step.calls, 2);
    EXPECT_EQ(step.bytes, kGradientBytes + 4 * 4);
  });
}

TEST_P(DdpTraffic, OfAHookIsWhatItSends) {
  on_ranks([](ProcessGroup& group) {
    const StepTraffic step = traffic_of_step(group, {.hook = fp16_compression()});
    EXPECT_EQ(step.calls, 1);
    EXPECT_EQ(step.bytes, kGradientBytes / 2);
  });
}

}  // namespace
}  // namespace muster::testing
