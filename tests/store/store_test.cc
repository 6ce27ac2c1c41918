// The conformance suite: what every store must do, over each of them.
#include "muster/store/store.h"

#include <atomic>
#include <thread>

#include "muster/base/env.h"
#include "muster/store/etcd_store.h"
#include "muster/store/file_store.h"
#include "muster/store/open_store.h"
#include "tests/store/support.h"
#include "tests/support/memory_store.h"

namespace muster {
namespace {

using namespace store_test;
using testing::HasSubstr;
using testing::Not;

// Something that ranks can open a store of, each for itself.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

class MemoryWorld final : public World {
 public:
  std::shared_ptr<Store> open() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
};

class FileWorld final : public World {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<FileStore>(FileStoreOptions{
        .path = dir_.file("store"), .job = "job", .rank = next_rank_++, .world_size = 100});
  }

 private:
  TempDir dir_;
  int next_rank_ = 0;
};

class ServerWorld final : public World {
 public:
  explicit ServerWorld(const std::string& endpoint)
      : server_({.endpoint = parse_endpoint(endpoint), .secret = secret_}) {}
  std::shared_ptr<Store> open() override {
    return open_store(to_string(server_.endpoint()), secret_, kLong);
  }

 private:
  Secret secret_ = Secret::make();
  TcpServer server_;
};

class UnixWorld final : public World {
 public:
  std::shared_ptr<Store> open() override { return served_.open(); }

 private:
  TempDir dir_;
  ServerWorld served_{"unix:" + dir_.file("socket")};
};

// A real etcd, where the tester has one (tests/cluster/etcd_test.py).
class EtcdWorld final : public World {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<EtcdStore>(EtcdStoreOptions{
        .http = {.urls = {get_env("MUSTER_TEST_ETCD").value_or("")}}, .job = job_});
  }
  ~EtcdWorld() override {
    EtcdStore({.http = {.urls = {*get_env("MUSTER_TEST_ETCD")}}, .job = job_}).remove_all();
  }

 private:
  std::string job_ = testing::UnitTest::GetInstance()->current_test_info()->name();
};

std::unique_ptr<World> make_world(const std::string& kind) {
  if (kind == "etcd")
    return std::make_unique<EtcdWorld>();
  if (kind == "memory")
    return std::make_unique<MemoryWorld>();
  if (kind == "file")
    return std::make_unique<FileWorld>();
  if (kind == "unix")
    return std::make_unique<UnixWorld>();
  return std::make_unique<ServerWorld>("tcp://127.0.0.1:0");
}

class StoreConformance : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<World> world_ = make_world(GetParam());
  std::shared_ptr<Store> store_ = world_->open();
};

std::vector<const char*> kinds_of_world() {
  std::vector<const char*> kinds = {"memory", "file", "tcp", "unix"};
  if (get_env("MUSTER_TEST_ETCD"))
    kinds.push_back("etcd");
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Stores,
                         StoreConformance,
                         testing::ValuesIn(kinds_of_world()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StoreConformance, GivesBackWhatWasSet) {
  const std::string every_byte = [] {
    std::string bytes;
    for (int i = 0; i < 256; ++i)
      bytes += static_cast<char>(i);
    return bytes;
  }();
  store_->set("key", "value");
  store_->set(every_byte, every_byte);
  store_->set("empty", "");
  store_->set("", "of the empty key");
  const auto other = world_->open();
  EXPECT_EQ(other->get("key", kLong), "value");
  EXPECT_EQ(other->get(every_byte, kLong), every_byte);
  EXPECT_EQ(other->get("empty", kLong), "");
  EXPECT_EQ(other->get("", kLong), "of the empty key");
  store_->set("key", "another");
  EXPECT_EQ(other->get("key", kLong), "another");
}

TEST_P(StoreConformance, HoldsLargeValuesAndRefusesLargerOnes) {
  const bool in_etcd = GetParam() == std::string_view("etcd");
  const std::string large(in_etcd ? EtcdStore::kMaxValueBytes : size_t{10} << 20, 'x');
  store_->set("large", large);
  EXPECT_TRUE(store_->get("large", kLong) == large);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { store_->set("k", std::string(kMaxValueBytes + 1, 'x')); }),
              HasSubstr("64.0 MiB"));
  if (in_etcd) {
    EXPECT_THAT(
        error_of(ErrorCode::invalid_argument, [&] { store_->set("k", large + "x"); }),
        HasSubstr("at most 1048576 B, which is what it takes in one request, got 1048577 B"));
  }
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { store_->set(std::string(kMaxKeyBytes + 1, 'k'), ""); }),
              HasSubstr("8.0 KiB"));
  EXPECT_FALSE(store_->check({"k"}));
}

TEST_P(StoreConformance, AddsToCounters) {
  EXPECT_EQ(store_->add("n", 5), 5);
  EXPECT_EQ(store_->add("n", -7), -2);
  EXPECT_EQ(store_->get("n", kLong), "-2");
  EXPECT_EQ(store_->add("n", 0), -2);
  store_->set("set", "40");
  EXPECT_EQ(store_->add("set", 2), 42);
}

TEST_P(StoreConformance, RefusesToAddToWhatIsNoNumber) {
  for (const std::string value : {"", "abc", "1.5", "9 ", "99999999999999999999"}) {
    store_->set("text", value);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { store_->add("text", 1); }),
                HasSubstr("text',"));
    EXPECT_EQ(store_->get("text", kLong), value);
  }
  store_->set("most", std::to_string(INT64_MAX));
  error_of(ErrorCode::invalid_argument, [&] { store_->add("most", 1); });
  EXPECT_EQ(store_->get("most", kLong), std::to_string(INT64_MAX));
}

TEST_P(StoreConformance, ComparesAndSets) {
  EXPECT_EQ(store_->compare_set("k", "expected", "x"),
            "expected");  // absent, and not expected to be
  EXPECT_FALSE(store_->check({"k"}));
  EXPECT_EQ(store_->compare_set("k", "", "first"), "first");
  EXPECT_EQ(store_->compare_set("k", "", "second"), "first");
  EXPECT_EQ(store_->compare_set("k", "first", "second"), "second");
  EXPECT_EQ(store_->get("k", kLong), "second");
}

TEST_P(StoreConformance, ChecksRemovesAndCounts) {
  EXPECT_EQ(store_->num_keys(), 0);
  EXPECT_TRUE(store_->check({}));
  store_->set("a", "1");
  EXPECT_TRUE(store_->check({"a"}));
  EXPECT_FALSE(store_->check({"a", "b"}));
  store_->set("b", "2");
  EXPECT_TRUE(store_->check({"a", "b"}));
  EXPECT_EQ(world_->open()->num_keys(), 2);
  EXPECT_TRUE(store_->remove("a"));
  EXPECT_FALSE(store_->remove("a"));
  EXPECT_FALSE(store_->check({"a"}));
  EXPECT_EQ(store_->num_keys(), 1);
}

TEST_P(StoreConformance, GivesTheValuesOfManyKeysInTheirOrder) {
  EXPECT_TRUE(store_->values({}).empty());
  std::vector<std::string> keys;
  std::vector<std::optional<std::string>> expected;
  for (int i = 0; i < 250; ++i) {
    keys.push_back("key" + std::to_string(i));
    expected.emplace_back();
    if (i % 3 == 0)
      continue;
    expected.back() = i % 3 == 1 ? "" : std::string(i, 'v') + '\0' + '\n';
    store_->set(keys.back(), *expected.back());
  }
  keys.push_back("key1");
  expected.push_back(expected[1]);
  EXPECT_EQ(store_->values(keys), expected);
}

TEST_P(StoreConformance, NamesTheMissingKeysAtTheTimeout) {
  store_->set("present", "");
  const auto shortly = std::chrono::milliseconds(20);
  EXPECT_THAT(error_of(ErrorCode::timeout, [&] { store_->get("rank\n7", shortly); }),
              testing::AllOf(HasSubstr("rank\\x0a7'"), HasSubstr("20ms")));
  EXPECT_THAT(
      error_of(ErrorCode::timeout, [&] { store_->wait({"present", "rank/1", "rank/2"}, shortly); }),
      testing::AllOf(HasSubstr("rank/1'"), HasSubstr("rank/2'"), Not(HasSubstr("present"))));
  std::vector<std::string> many;
  for (int i = 0; i < 30; ++i)
    many.push_back("k" + std::to_string(i));
  EXPECT_THAT(error_of(ErrorCode::timeout, [&] { store_->wait(many, shortly); }),
              HasSubstr("and 22 more"));
}

TEST_P(StoreConformance, AsksOnceWithoutATimeout) {
  store_->set("there", "1");
  EXPECT_EQ(store_->get("there", std::chrono::milliseconds(0)), "1");
  store_->wait({}, std::chrono::milliseconds(0));
  error_of(ErrorCode::timeout, [&] { store_->get("absent", std::chrono::milliseconds(0)); });
  error_of(ErrorCode::timeout, [&] { store_->get("absent", std::chrono::milliseconds(-1)); });
  EXPECT_EQ(store_->get("there", std::chrono::milliseconds::max()), "1");
}

TEST_P(StoreConformance, WaitsUntilOthersHaveSetEveryKey) {
  std::thread waiter([&] {
    store_->add("started", 1);
    store_->wait({"a", "b", "c"}, kLong);
    store_->set("done", store_->get("b", kLong));
  });
  const auto other = world_->open();
  other->get("started", kLong);
  other->set("c", "3");
  other->compare_set("a", "", "1");
  EXPECT_FALSE(other->check({"done"}));
  other->add("b", 2);
  EXPECT_EQ(other->get("done", kLong), "2");
  waiter.join();
}

TEST_P(StoreConformance, ABlockedThreadDoesNotStopTheOthersOfItsStore) {
  constexpr int kRounds = 50;
  std::thread echo([&] {
    for (int i = 0; i < kRounds; ++i)
      store_->set("pong" + std::to_string(i), store_->get("ping" + std::to_string(i), kLong));
  });
  for (int i = 0; i < kRounds; ++i) {
    store_->set("ping" + std::to_string(i), std::to_string(i));
    EXPECT_EQ(store_->get("pong" + std::to_string(i), kLong), std::to_string(i));
  }
  echo.join();
}

TEST_P(StoreConformance, CountsEveryAddOfManyClients) {
  constexpr int kClients = 16;
  constexpr int kAdds = 40;
  std::vector<std::shared_ptr<Store>> clients;
  for (int i = 0; i < kClients; ++i)
    clients.push_back(world_->open());
  std::vector<std::thread> threads;
  for (const auto& client : clients) {
    threads.emplace_back([client] {
      for (int i = 0; i < kAdds; ++i) {
        if (client->add("n", 1) == kClients * kAdds)
          client->set("all", "");
      }
      client->get("all", kLong);
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(store_->add("n", 0), kClients * kAdds);
}

TEST_P(StoreConformance, AppendsToALogWithoutGaps) {
  constexpr int kWriters = 4;
  constexpr int kEntries = 10;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer, store = world_->open()] {
      for (int i = 0; i < kEntries; ++i) {
        const std::string entry = cat(writer, ":", i);
        const int64_t number = store->append("log", entry);
        EXPECT_EQ(store->get(log_entry_key("log", number), kLong), entry);
      }
    });
  }
  for (std::thread& writer : writers)
    writer.join();
  std::vector<int> next(kWriters, 0);
  for (int number = 1; number <= kWriters * kEntries; ++number) {
    const auto parts = split(store_->get(log_entry_key("log", number), kLong), ':');
    EXPECT_EQ(std::stoi(parts.at(1)), next.at(static_cast<size_t>(std::stoi(parts[0])))++);
  }
  EXPECT_FALSE(store_->check({log_entry_key("log", kWriters * kEntries + 1)}));
}

TEST_P(StoreConformance, LetsOneOfManyCompareSetsWin) {
  std::vector<std::thread> threads;
  std::atomic<int> winners{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const std::string mine = std::to_string(i);
      if (store_->compare_set("leader", "", mine) == mine)
        ++winners;
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(winners, 1);
}

}  // namespace
}  // namespace muster
