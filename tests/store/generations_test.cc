#include "muster/store/generations.h"

#include <thread>

#include "muster/store/memory_store.h"
#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;

TEST(Generations, EveryRankHearsWhy) {
  MemoryStore store;
  announce_generation(store, 1, 2, "rank 1: killed");
  EXPECT_EQ(wait_for_generation(store, 1, 0, kLong), "rank 1: killed");
  EXPECT_EQ(wait_for_generation(store, 1, 1, kLong), "rank 1: killed");
  EXPECT_EQ(wait_for_generation(store, 2, 0, std::chrono::milliseconds(1)), std::nullopt);
}

TEST(Generations, ARankThatWaitsHearsOfIt) {
  MemoryStore store;
  std::optional<std::string> heard;
  std::thread waits([&] { heard = wait_for_generation(store, 3, 1, kLong); });
  announce_generation(store, 3, 2, "");
  waits.join();
  EXPECT_EQ(heard, "");
}

TEST(Generations, WaitingCanBeStopped) {
  MemoryStore store;
  std::optional<std::string> heard = "";
  std::thread waits([&] { heard = wait_for_generation(store, 1, 0, kLong); });
  stop_waiting_for_generation(store, 1, 0);
  waits.join();
  EXPECT_EQ(heard, std::nullopt);
  EXPECT_EQ(wait_for_generation(store, 1, 0, kLong), std::nullopt) << "also a wait that begins later";
}

TEST(Generations, WhoHasComeIsKnownByGeneration) {
  MemoryStore store;
  come_to_generation(store, 1, 0);
  EXPECT_TRUE(has_come_to_generation(store, 1, 0));
  EXPECT_FALSE(has_come_to_generation(store, 1, 1));
  EXPECT_FALSE(has_come_to_generation(store, 2, 0));
}

}  // namespace
}  // namespace muster
