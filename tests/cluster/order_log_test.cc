#include "muster/cluster/order_log.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/cluster/stored_plan.h"
#include "muster/placement/plan_part.h"
#include "muster/placement/planner.h"
#include "tests/placement/machines.h"
#include "tests/support/memory_store.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::SizeIs;

// Hosts of 8 GPUs; their ids are "id-0", "id-1" …
Order order_of(int hosts) {
  Inventory inventory{.source = "test"};
  Order order{.round = 3, .num_hosts = hosts, .reason = "r"};
  for (int i = 0; i < hosts; ++i) {
    inventory.hosts.push_back(gpu_host(i, 8));
    inventory.hosts.back().name = cat("host-", i);
    order.hosts.push_back(cat("id-", i));
  }
  order.plan = plan(inventory, {.global_batch = 64 * hosts});
  order.plan.notes = {"a note"};
  return order;
}

std::string entry_at(Store& store, int64_t number) {
  return store.get(log_entry_key(kOrders, number), milliseconds(0));
}

Order order_at(Store& store, int64_t number) {
  return read_order(store, entry_at(store, number));
}

TEST(OrderLog, AnOrderIsReadBackWhole) {
  for (const size_t limit : {size_t{500}, kMaxValueBytes}) {
    for (const int hosts : {1, 2, 40}) {
      MemoryStore store(limit);
      const Order order = order_of(hosts);
      const WrittenOrder written = write_order(store, 1, order);
      EXPECT_TRUE(written.is_ours);
      EXPECT_EQ(written.keys.front(), "orders/1") << "it goes first when the order is forgotten";
      EXPECT_EQ(order_at(store, 1).plan, order.plan);
      EXPECT_EQ(order_at(store, 1).hosts, order.hosts);
      EXPECT_EQ(store.get("orders/size", milliseconds(0)), "1");
      const Order read = order_at(store, 1);
      EXPECT_EQ(keys_of_order(1, entry_at(store, 1), read.stored), written.keys);
    }
  }
}

// What the functions of plan_part.h say of a part is what they say of the whole.
TEST(OrderLog, AHostReadsItsPart) {
  MemoryStore store;
  const Order order = order_of(10);
  write_order(store, 1, order);
  for (int host = 0; host < 10; ++host) {
    const Order read = read_order_of_host(store, entry_at(store, 1), cat("id-", host));
    EXPECT_TRUE(read.hosts.empty());
    EXPECT_EQ(read.num_hosts, 10);
    ASSERT_EQ(read.host_index, host);
    ASSERT_TRUE(read.plan.part.has_value());
    EXPECT_EQ(read.plan.part->digest, read.stored.digest);
    const RankRange range = ranks_on_host(order.plan, host);
    const auto begin = order.plan.ranks.begin() + std::ssize(order.plan.ranks) / 10 * host;
    EXPECT_EQ(read.plan.ranks, std::vector<RankPlan>(begin, begin + 8));
    EXPECT_EQ(rank_numbers_on_host(read.plan, host).first, range.first);
    EXPECT_EQ(rank_numbers_on_host(read.plan, host).count, range.count);
    EXPECT_EQ(world_size(read.plan), 80);
    EXPECT_EQ(place_of_host(read.plan, host).index, host);
    EXPECT_EQ(place_of_host(read.plan, host).count, 10);
    EXPECT_TRUE(all_own_gpus(read.plan));
    EXPECT_EQ(batch_shares_in(read.plan), batch_shares_in(order.plan));
    EXPECT_EQ(read.whole != nullptr, host == 0) << "the first host shows it and writes plan.json";
    const WholeRound whole = read_whole(store, read);
    EXPECT_EQ(whole.plan, order.plan);
    EXPECT_EQ(whole.hosts, order.hosts);
  }
}

TEST(OrderLog, AHostWithoutAPartIsASpare) {
  MemoryStore store;
  write_order(store, 1, order_of(10));
  const Order read = read_order_of_host(store, entry_at(store, 1), "id-10");
  EXPECT_FALSE(read.host_index.has_value());
  EXPECT_EQ(read.num_hosts, 10);
  EXPECT_TRUE(read.plan.ranks.empty());
}

TEST(OrderLog, AHostNeedsNothingOfTheOthers) {
  MemoryStore store;
  const WrittenOrder written = write_order(store, 1, order_of(200));
  const std::string entry = entry_at(store, 1);
  const StoredPlan stored = order_from_text(entry).stored;
  std::vector<std::string> own = keys_of_part(stored, "id-77");
  own.emplace_back("orders/1");
  size_t bytes = 0;
  for (const std::string& key : written.keys) {
    if (std::ranges::find(own, key) == own.end())
      store.remove(key);
    else
      bytes += store.get(key, milliseconds(0)).size();
  }
  EXPECT_EQ(read_order_of_host(store, entry, "id-77").plan.ranks.front().rank, 77 * 8);
  EXPECT_LT(bytes, 4'000U);
}

TEST(OrderLog, ValuesLargerThanTheStoreTakesAreWrittenInParts) {
  MemoryStore store(100);
  const Order order = order_of(40);
  const WrittenOrder written = write_order(store, 1, order);
  ASSERT_TRUE(written.is_ours);
  for (const std::string& key : written.keys)
    EXPECT_LE(store.get(key, milliseconds(0)).size(), 100U) << key;
  EXPECT_EQ(order_at(store, 1).plan, order.plan);
  EXPECT_EQ(read_order_of_host(store, entry_at(store, 1), "id-7").host_index, 7);
  for (const std::string& key : written.keys)
    store.remove(key);
  EXPECT_EQ(store.num_keys(), 1) << "the size of the log";
}

// A store that is lost to its user after some writes.
class BreakingStore final : public Store {
 public:
  BreakingStore(Store& store, int writes) : store_(store), left_(writes) {}
  void set(const std::string& key, const std::string& value) override {
    write();
    store_.set(key, value);
  }
  std::string get(const std::string& key, milliseconds timeout) override {
    return store_.get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override { return store_.add(key, amount); }
  std::string compare_set(const std::string& key,
                          const std::string& expected,
                          const std::string& desired) override {
    write();
    return store_.compare_set(key, expected, desired);
  }
  bool check(const std::vector<std::string>& keys) override { return store_.check(keys); }
  void wait(const std::vector<std::string>& keys, milliseconds timeout) override {
    store_.wait(keys, timeout);
  }
  bool remove(const std::string& key) override {
    write();
    return store_.remove(key);
  }
  int64_t num_keys() override { return store_.num_keys(); }
  size_t max_value_bytes() const override { return store_.max_value_bytes(); }

 private:
  void write() {
    if (left_-- <= 0)
      throw Error(ErrorCode::unavailable, "the store is lost");
  }

  Store& store_;
  int left_;
};

bool is_lost(const std::function<void()>& use) {
  try {
    use();
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    return true;
  }
}

// A coordinator ends after each of its writes: a successor finds the whole order, or none.
TEST(OrderLog, AnOrderThatBreaksOffIsThereAsAWholeOrNotAtAll) {
  const Order order = order_of(20);
  bool was_lost = true;
  for (int writes = 0; was_lost; ++writes) {
    MemoryStore store(300);
    BreakingStore breaking(store, writes);
    was_lost = is_lost([&] { write_order(breaking, 1, order); });
    if (!store.check({"orders/1"})) {
      EXPECT_TRUE(was_lost);
      ASSERT_TRUE(write_order(store, 1, order_of(10)).is_ours) << "the successor's";
      EXPECT_EQ(order_at(store, 1).plan, order_of(10).plan);
      continue;
    }
    EXPECT_EQ(order_at(store, 1).plan, order.plan) << writes;
    EXPECT_EQ(order_at(store, 1).hosts, order.hosts) << writes;
    for (const std::string& id : order.hosts)
      EXPECT_TRUE(read_order_of_host(store, entry_at(store, 1), id).host_index) << writes;
  }
}

// Nor does a successor find the rest of one that is being forgotten.
TEST(OrderLog, AnOrderThatIsHalfForgottenIsNotFound) {
  const Order order = order_of(20);
  MemoryStore store(300);
  const WrittenOrder written = write_order(store, 1, order);
  for (const std::string& key : written.keys) {
    store.remove(key);
    EXPECT_FALSE(store.check({"orders/1"})) << key;
  }
}

// A coordinator ends before it has written the entry: nobody sees an order, and its successor's is
// whole.
TEST(OrderLog, PartsWithoutAnEntryAreNoOrder) {
  MemoryStore store;
  const Order lost = order_of(30);
  const WrittenOrder written = write_order(store, 1, lost);
  store.remove(written.keys.front());
  EXPECT_FALSE(store.check({"orders/1"}));
  const Order order = order_of(20);
  ASSERT_TRUE(write_order(store, 1, order).is_ours);
  EXPECT_EQ(order_at(store, 1).plan, order.plan);
  EXPECT_EQ(read_order_of_host(store, entry_at(store, 1), "id-7").num_hosts, 20);
  EXPECT_FALSE(read_order_of_host(store, entry_at(store, 1), "id-25").host_index.has_value())
      << "only the lost order had it";
}

// What an order has lost, as it is forgotten, is no smaller plan.
TEST(OrderLog, AnOrderWithoutAPartIsNone) {
  MemoryStore store;
  const WrittenOrder written = write_order(store, 1, order_of(30));
  const std::string entry = entry_at(store, 1);
  store.remove(written.keys.back());
  EXPECT_THROW(read_order(store, entry), Error);
  store.set(written.keys.back(), "");
  EXPECT_THROW(read_order(store, entry), Error);
}

TEST(OrderLog, EqualPlansHaveTheSameDigest) {
  MemoryStore store;
  Order order = order_of(5);
  write_order(store, 1, order);
  order.round = 4;
  order.hosts[2] = "another agent of that host";
  write_order(store, 2, order);
  order.plan.ranks[3].reason = "another";
  write_order(store, 3, order);
  EXPECT_EQ(order_at(store, 1).stored.digest, order_at(store, 2).stored.digest);
  EXPECT_NE(order_at(store, 1).stored.digest, order_at(store, 3).stored.digest);
  EXPECT_EQ(order_at(store, 2).hosts, order.hosts);
}

TEST(OrderLog, ANumberIsTakenOnce) {
  for (const size_t limit : {size_t{500}, kMaxValueBytes}) {
    MemoryStore store(limit);
    const Order first = order_of(20);
    const Order second = order_of(30);
    EXPECT_TRUE(write_order(store, 1, first).is_ours);
    const int64_t keys = store.num_keys();
    EXPECT_FALSE(write_order(store, 1, second).is_ours);
    EXPECT_EQ(store.num_keys(), keys) << "nothing is left of the one that came too late";
    EXPECT_EQ(order_at(store, 1).plan, first.plan);
    EXPECT_TRUE(write_order(store, 2, second).is_ours);
    EXPECT_EQ(order_at(store, 2).plan, second.plan);
  }
}

TEST(OrderLog, TheSizeIsBroughtUpAfterACoordinatorThatEndedInBetween) {
  MemoryStore store;
  store.set(log_entry_key(kOrders, 1), to_text(order_of(1)));
  write_order(store, 2, order_of(1));
  EXPECT_EQ(store.get("orders/size", milliseconds(0)), "2");
}

TEST(OrderLog, TheSizeNeverPassesAnEntryThatIsThere) {
  MemoryStore store;
  write_order(store, 1, order_of(1));
  write_order(store, 2, order_of(1));
  store.remove(log_entry_key(kOrders, 1));  // an older coordinator wakes late
  write_order(store, 1, order_of(1));
  EXPECT_EQ(store.get("orders/size", milliseconds(0)), "2");
}

TEST(OrderLog, RefusesPartsThatNobodyCanHaveWritten) {
  MemoryStore store;
  for (const std::string entry : {"in parts ",
                                  "in parts x",
                                  "in parts x y",
                                  "in parts x 0",
                                  "in parts x -1",
                                  "in parts x 9999999999"}) {
    EXPECT_THROW(read_order(store, entry), Error) << entry;
    EXPECT_THROW(keys_of_order(1, entry, {}), Error) << entry;
  }
  EXPECT_THROW(read_order(store, "in parts x 1"), Error) << "a part that is not there";
}

}  // namespace
}  // namespace muster
