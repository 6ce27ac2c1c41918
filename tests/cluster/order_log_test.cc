#include "muster/cluster/order_log.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/placement/planner.h"
#include "tests/placement/machines.h"
#include "tests/support/memory_store.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::SizeIs;

Order order_of(int hosts) {
  Inventory inventory{.source = "test"};
  for (int i = 0; i < hosts; ++i) {
    inventory.hosts.push_back(gpu_host(i, 8));
    inventory.hosts.back().name = "host-" + std::to_string(i);
  }
  return {.round = 3, .plan = plan(inventory, {}), .reason = "r"};
}

Order order_at(Store& store, int64_t number) {
  return read_order(store, store.get(log_entry_key(kOrders, number), milliseconds(0)));
}

TEST(OrderLog, AnOrderIsReadBackWhole) {
  MemoryStore store;
  const Order order = order_of(2);
  const WrittenOrder written = write_order(store, 1, order);
  EXPECT_TRUE(written.is_ours);
  EXPECT_THAT(written.keys, ElementsAre("orders/1"));
  EXPECT_EQ(order_at(store, 1).plan, order.plan);
  EXPECT_EQ(store.get("orders/size", milliseconds(0)), "1");
}

TEST(OrderLog, AnOrderLargerThanTheStoreTakesIsWrittenInParts) {
  MemoryStore store(500);
  const Order order = order_of(40);
  const WrittenOrder written = write_order(store, 1, order);
  ASSERT_TRUE(written.is_ours);
  EXPECT_GT(written.keys.size(), 5U);
  for (const std::string& key : written.keys)
    EXPECT_LE(store.get(key, milliseconds(0)).size(), 500U) << key;
  EXPECT_EQ(order_at(store, 1).plan, order.plan);
  for (const std::string& key : written.keys)
    store.remove(key);
  EXPECT_EQ(store.num_keys(), 1) << "the size of the log";
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
    EXPECT_THROW(keys_of_order(1, entry), Error) << entry;
  }
  EXPECT_THROW(read_order(store, "in parts x 1"), Error) << "a part that is not there";
}

}  // namespace
}  // namespace muster
