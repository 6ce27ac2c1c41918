#include "muster/comm/nccl/gpu_turn.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <thread>

namespace muster {
namespace {

constexpr int kHeld = 42;
std::atomic<bool> has_turn = false;

// Stands for CUDA's own end, which was registered earlier and so comes later.
void leave() {
  const bool is_asked = has_turn || static_cast<bool>(GpuTurn());
  ::_exit(is_asked ? 1 : kHeld);
}

// A thread asks without a pause while the process ends.
[[noreturn]] void end_while_a_thread_asks() {
  std::atexit(leave);
  end_turns_at_exit();
  std::latch has_begun(1);
  std::thread asking([&] {
    for (bool begins = true;; begins = false) {
      const GpuTurn turn;
      if (!turn)
        return;
      has_turn = true;
      if (begins)
        has_begun.count_down();
      has_turn = false;
    }
  });
  asking.detach();
  has_begun.wait();
  std::exit(0);
}

TEST(GpuTurnDeathTest, NoneIsUnderWayOrGrantedWhenCudaGoes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end_while_a_thread_asks(), ::testing::ExitedWithCode(kHeld), "");
}

}  // namespace
}  // namespace muster
