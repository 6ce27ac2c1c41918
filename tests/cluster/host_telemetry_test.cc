// What an agent asks the others, where the store fails it. The telemetry of real hosts is in
// telemetry_test.py.
#include "muster/cluster/host_telemetry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/trace/hosts_folder.h"
#include "tests/device/scratch.h"
#include "tests/support/memory_store.h"

namespace muster {
namespace {

// An agent asks the other hosts, rank 0 for itself and rank 1 for "b".
class HostTelemetryTest : public testing::Test {
 protected:
  HostTelemetryOptions first(std::function<RoundHosts()> all) const {
    return {.host = "a",
            .num_hosts = 2,
            .ranks = {.first = 0, .count = 1},
            .all = std::move(all),
            .run_dir = folder_.path(),
            .launch = "launch-1"};
  }

  static RoundHosts both() {
    return {.ids = {"a", "b"}, .ranks = {{.first = 0, .count = 1}, {.first = 1, .count = 1}}};
  }

  // Rank 0 waits for rank 1, as soon as there is an agent to ask.
  void ask() const {
    const Deadline deadline(std::chrono::seconds(30));
    while (!ask_to_describe(folder_.path(), 0, {.attempt = 0, .ranks = {1}})) {
      ASSERT_FALSE(deadline.passed()) << "no agent can be asked";
      std::this_thread::yield();
    }
  }

  // What "b" is asked to describe.
  static std::string request_to_b(Store& store) {
    const std::string request = store.get("ask/b/1", std::chrono::seconds(30));
    return request.substr(request.find(" describe"));
  }

  ScratchFolder folder_;
};

TEST_F(HostTelemetryTest, ALateRequestOutlivesAPlanThatCannotBeRead) {
  const auto store = std::make_shared<MemoryStore>();
  const auto tries = std::make_shared<std::atomic<int>>(0);
  const auto fails_twice = [tries] {
    if (++*tries <= 2)
      throw Error(ErrorCode::timeout, "a part of its plan is not in the store any more");
    return both();
  };
  HostTelemetry telemetry(store, first(fails_twice));
  ask();
  EXPECT_EQ(request_to_b(*store), " describe 0 1");
  telemetry.finish();
}

// A job of weeks begins many rounds, and each has telemetry of its own.
TEST_F(HostTelemetryTest, AnEndLeavesNoRequestBehind) {
  const auto store = std::make_shared<MemoryStore>();
  for (int round = 1; round <= 3; ++round) {
    HostTelemetry telemetry(store, first(both));
    telemetry.finish();
  }
  const Deadline deadline(std::chrono::seconds(30));
  while (store->num_keys() > 1 && !deadline.passed())  // one is their number
    std::this_thread::yield();
  forget_host_telemetry(*store, "a");
  EXPECT_EQ(store->num_keys(), 0);
}

// The asker and the host may both be gone when the coordinator forgets the host.
TEST_F(HostTelemetryTest, NothingOfAHostThatHasLeftStays) {
  const auto store = std::make_shared<MemoryStore>();
  HostTelemetryOptions options = first(both);
  options.host = "b";
  options.sampler = [](const RankRange&) {
    return std::string("busy");
  };
  for (const char* const asker : {"a", "c"}) {
    HostTelemetry telemetry(store, options);
    // What is asked before it begins to answer is not for it.
    const Deadline deadline(std::chrono::seconds(30));
    while (!store->check({cat("sample/b/", asker)}) && !deadline.passed()) {
      store->append("ask/b", cat(asker, " somebody 1 sample"));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(store->check({cat("sample/b/", asker)}));
    telemetry.finish();
  }
  store->append("ask/b", "a somebody 2 sample");
  store->set("activity/b", "3");
  store->set("activity/b/0", "0 some");
  store->set("activity/b/2", "0 more");
  forget_host_telemetry(*store, "b");
  EXPECT_EQ(store->num_keys(), 0);
}

}  // namespace
}  // namespace muster
