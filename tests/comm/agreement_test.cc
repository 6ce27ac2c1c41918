#include "muster/comm/agreement.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kPatience{20};

// Two ranks as threads, each with its agreement.
class TwoRanks : public testing::Test {
 protected:
  Agreement& rank(int rank) { return agreements_[rank]; }

  void both(const std::function<void(int)>& body) {
    std::thread other([&] { body(1); });
    body(0);
    other.join();
  }

  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
  Agreement agreements_[2] = {{store_, 0, 2, false}, {store_, 1, 2, false}};
};

TEST_F(TwoRanks, HaveFewKeysHoweverManyShapesThereAre) {
  both([&](int who) {
    for (int call = 0; call < 2000; ++call)
      rank(who).before(call, cat("all_reduce sum Float [", call, "]"), kPatience);
  });
  EXPECT_LE(store_->getNumKeys(), 4);
}

TEST_F(TwoRanks, LookAgainAtACallThatAllHavePassed) {
  both([&](int who) {
    rank(who).before(0, "broadcast Float [1]", kPatience);
    rank(who).before(1, "broadcast Float [2]", kPatience);
    rank(who).before(2, "broadcast Float [3]", kPatience);
  });
  rank(0).look_again(0, "broadcast Float [1]");
  EXPECT_TRUE(rank(0).absent(0).empty()) << "both have come to a later one";
  EXPECT_EQ(rank(0).absent(3), std::vector<int>{1});
}

TEST_F(TwoRanks, TakeBackTheKeysOfCallsThatAreOver) {
  for (int call = 0; call < 1000; ++call)
    rank(0).show(call, "all_reduce sum Float [1]");
  EXPECT_TRUE(rank(1).absent(0).empty()) << "a call that is open stays there";
  for (int call = 1; call < 1000; ++call)
    rank(0).take_back(call);
  EXPECT_LE(store_->getNumKeys(), 2);
  EXPECT_TRUE(rank(1).absent(0).empty());
}

// The one that leaves is no cause of what the other has met.
TEST_F(TwoRanks, TellTheOneThatLeavesOfOneThatHasGivenUp) {
  rank(0).give_up(0);
  try {
    rank(1).before(0, kLeaving, kPatience);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_failed);
    EXPECT_NE(error.message().find("rank 0 has given up the group"), std::string::npos)
        << error.message();
  }
}

TEST_F(TwoRanks, SeeBothSidesOfACallThatIsNewToOneOnly) {
  both([&](int who) { rank(who).before(0, "barrier", kPatience); });
  std::string errors[2];
  both([&](int who) {
    const std::string signature = who == 0 ? "barrier" : "all_gather Float [2]";
    try {
      rank(who).before(1, signature, kPatience);
      for (;;) {
        rank(who).look_again(1, signature);
        std::this_thread::yield();
      }
    } catch (const Error& error) {
      errors[who] = error.message();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("'barrier' on rank"), std::string::npos) << error;
    EXPECT_NE(error.find("'all_gather Float [2]' on rank"), std::string::npos) << error;
  }
}

// Of a rank's two threads, one is stuck in a call that the other rank does not make, and one waits
// in a later one.
TEST_F(TwoRanks, AStuckCallIsToldWhileALaterOneWaits) {
  both([&](int who) { rank(who).before(0, "all_reduce", kPatience); });
  Agreement stuck(store_, 0, 2, false);
  std::string error, later;
  std::thread waits([&] {
    try {
      stuck.before(2, "barrier", std::chrono::seconds(3));
    } catch (const Error& failure) {
      later = failure.message();
    }
  });
  while (!store_->check({"call/2/0"}))
    std::this_thread::yield();
  stuck.look_again(1, "all_reduce");
  try {
    rank(1).before(1, "barrier", kPatience);
  } catch (const Error& failure) {
    error = failure.message();
  }
  waits.join();
  EXPECT_NE(error.find("'all_reduce' on rank 0"), std::string::npos) << error;
  EXPECT_NE(later.find("missing rank(s) 1"), std::string::npos) << later;
}

}  // namespace
}  // namespace muster
