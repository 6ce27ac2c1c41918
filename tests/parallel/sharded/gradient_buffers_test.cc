// Buffers in shared memory are used again once nobody has them.
#include "muster/parallel/sharded/gradient_buffers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

TEST(GradientBuffers, AFreeOneIsTakenAgain) {
  run_ranks(2,
            [](ProcessGroup& group) {
              GradientBuffers buffers(group);
              at::Tensor first = buffers.take(100, at::kFloat);
              const void* const place = first.data_ptr();
              at::Tensor view = first.narrow(0, 10, 5);
              first.reset();
              const at::Tensor second = buffers.take(100, at::kFloat);
              EXPECT_NE(second.data_ptr(), place);
              view.reset();
              EXPECT_EQ(buffers.take(60, at::kFloat).data_ptr(), place);
              EXPECT_EQ(buffers.take(60, at::kFloat).numel(), 60);
            },
            {.backend = "shm"});
}

TEST(GradientBuffers, LargerOnesAndOtherTypesTakeThePlaceOfFreeOnes) {
  run_ranks(2,
            [](ProcessGroup& group) {
              GradientBuffers buffers(group);
              for (const int64_t length : {10, 2000, 300'000, 5}) {
                at::Tensor floats = buffers.take(length, at::kFloat).fill_(1);
                at::Tensor halves = buffers.take(length, at::kBFloat16).fill_(2);
                at::Tensor third = buffers.take(length, at::kDouble).fill_(3);
                EXPECT_EQ(floats.sum().item<double>(), length);
                EXPECT_EQ(halves.to(at::kDouble).sum().item<double>(), 2 * length);
                EXPECT_EQ(third.sum().item<double>(), 3 * length);
              }
            },
            {.backend = "shm"});
}

}  // namespace
}  // namespace muster::testing
