// One host's side of a job, over a store whose orders the test writes.
#include "muster/cluster/member.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "tests/cluster/coordinator_world.h"
#include "tests/support/memory_store.h"

namespace muster {
namespace {

// It counts the questions for what other hosts or the coordinator have written.
class AskedStore final : public MemoryStore {
 public:
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    ++questions_;
    return MemoryStore::get(key, timeout);
  }
  // One question, however many keys.
  std::vector<std::optional<std::string>> values(const std::vector<std::string>& keys) override {
    const int before = questions_;
    auto found = MemoryStore::values(keys);
    questions_ = before + 1;
    return found;
  }
  int questions() const { return questions_; }

 private:
  std::atomic<int> questions_{0};
};

Order next_order(Member& member) {
  for (;;) {
    if (auto order = member.take())
      return *std::move(order);
    pollfd ready = {.fd = member.fd(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, -1);
  }
}

// A thousand hosts are lost at once: each is refused, in case it lives, and every other host reads
// that.
TEST(Member, ReadsOrdersThatCameTogetherTogether) {
  constexpr int kOrdersAtOnce = 1'000;
  const auto store = std::make_shared<AskedStore>();
  Member member(store, facts_of("1"), {.silence = Silence(std::chrono::hours(1))});
  // The first comes last.
  for (int number = kOrdersAtOnce; number >= 1; --number) {
    store->set(log_entry_key(kOrders, number),
               to_text(Order{.kind = Order::Kind::refuse, .round = number, .hosts = {"another"}}));
  }
  for (int number = 1; number <= kOrdersAtOnce; ++number)
    EXPECT_EQ(next_order(member).round, number);
  EXPECT_LT(store->questions(), 40);
  store->set(log_entry_key(kOrders, kOrdersAtOnce + 1),
             to_text(Order{.kind = Order::Kind::finish}));
  EXPECT_EQ(next_order(member).kind, Order::Kind::finish);
}

}  // namespace
}  // namespace muster
