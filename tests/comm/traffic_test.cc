// What ProcessGroup::traffic() counts.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>

#include "muster/comm/process_group.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

class TrafficTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, TrafficTest, ::testing::Values("gloo", "shm"));

TEST_P(TrafficTest, IsWhatARankPutsIn) {
  run_ranks(3,
            [](ProcessGroup& group) {
              Traffic before;
              const auto since_then = [&] {
                const Traffic now = group.traffic();
                const std::pair<int64_t, int64_t> more(now.calls - before.calls,
                                                       now.bytes - before.bytes);
                before = now;
                return more;
              };
              using Counted = std::pair<int64_t, int64_t>;
              const bool first = group.rank() == 0;
              const auto part = torch::ones({2, 3});  // 24 bytes
              const auto whole = torch::ones({6, 3});
              EXPECT_EQ(since_then(), Counted(0, 0));
              group.all_reduce(part.clone());
              group.all_reduce_async(part.clone()).wait();
              EXPECT_EQ(since_then(), Counted(2, 48));
              group.all_gather(whole.clone(), part);
              EXPECT_EQ(since_then(), Counted(1, 24));
              group.reduce_scatter(part.clone(), whole);
              EXPECT_EQ(since_then(), Counted(1, 72));
              group.all_to_all(whole.clone(), whole);
              EXPECT_EQ(since_then(), Counted(1, 72));
              group.broadcast(part.clone(), 0);
              EXPECT_EQ(since_then(), first ? Counted(1, 24) : Counted(0, 0));
              group.gather(whole.clone(), part, 0);
              EXPECT_EQ(since_then(), Counted(1, 24));
              group.scatter(part.clone(), whole, 0);
              EXPECT_EQ(since_then(), first ? Counted(1, 72) : Counted(0, 0));
              if (first)
                group.send(part, 1);
              if (group.rank() == 1)
                group.recv(part.clone(), 0);
              EXPECT_EQ(since_then(), first ? Counted(1, 24) : Counted(0, 0));
              group.barrier();
              EXPECT_EQ(since_then(), Counted(0, 0));
            },
            {.backend = GetParam()});
}

}  // namespace
}  // namespace muster::testing
