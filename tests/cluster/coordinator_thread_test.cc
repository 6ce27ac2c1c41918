// The coordinator over a store, with hosts that are nothing but their reports.
#include "muster/cluster/coordinator_thread.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/cluster/order_log.h"
#include "muster/launch/launch.h"
#include "muster/supervise/command_output.h"
#include "tests/cluster/coordinator_world.h"
#include "tests/support/memory_store.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr std::chrono::seconds kLong{60};

// No host of these tests gives a sign of life, and none is given up for that.
CoordinatorThreadOptions options_of(bool take_over) {
  return {.silence = Silence(std::chrono::hours(1)),
          .take_over = take_over,
          .keeps_history = milliseconds(0)};
}

// It counts the questions for entries of a log, and those for signs of life.
class CountingStore final : public MemoryStore {
 public:
  using MemoryStore::MemoryStore;
  std::vector<std::optional<std::string>> values(const std::vector<std::string>& keys) override {
    const bool is_of_log = std::ranges::any_of(keys, [](const std::string& key) {
      return key.starts_with(kOrders) || key.starts_with(kReports);
    });
    const bool is_of_host = std::ranges::any_of(
        keys, [](const std::string& key) { return host_of_sign_of_life(key).has_value(); });
    auto values = MemoryStore::values(keys);
    questions_ += is_of_log ? 1 : 0;
    watches_of_hosts_ += is_of_host ? 1 : 0;
    watches_of_nobody_ += keys.empty() ? 1 : 0;
    return values;
  }
  int questions() const { return questions_; }
  int watches_of_hosts() const { return watches_of_hosts_; }
  int watches_of_nobody() const { return watches_of_nobody_; }

 private:
  std::atomic<int> questions_{0};
  std::atomic<int> watches_of_hosts_{0};
  std::atomic<int> watches_of_nobody_{0};
};

class CoordinatorOverAStore : public testing::Test {
 protected:
  std::unique_ptr<CoordinatorThread> coordinator(bool take_over = false) {
    return coordinator(between(2, 3), options_of(take_over));
  }
  std::unique_ptr<CoordinatorThread> coordinator(const CoordinatorRules& rules,
                                                 const CoordinatorThreadOptions& options) {
    return std::make_unique<CoordinatorThread>(
        store_,
        rules,
        [](const std::vector<HostFacts>& hosts) {
          Inventory inventory{.source = "test"};
          Request request;
          for (const HostFacts& host : hosts) {
            inventory.hosts.push_back(host.host);
            request.hosts.push_back({.name = host.host.name, .nproc = host.nproc});
          }
          return plan(inventory, request);
        },
        options);
  }

  void join(const std::string& name) {
    HostFacts facts = facts_of(name);
    facts.min_hosts = 2;
    facts.max_hosts = 3;
    report({.kind = Report::Kind::join, .from = facts.id, .facts = facts});
  }
  void report(Report report) {
    report.number = report.kind == Report::Kind::lost ? 0 : ++number_;
    store_->append(kReports, to_text(report));
  }

  // What a host has left in the store for the others, and what it was asked and has not answered.
  void leave_telemetry(const std::string& name) {
    const std::string id = "id-" + name;
    store_->set("activity/" + id, "2");
    store_->set("activity/" + id + "/0", "0 some");
    store_->set("activity/" + id + "/1", "0 more");
    store_->set("events/" + id, "0/0\n0/1\n");
    store_->set("events/" + id + "/0/0", "events");
    store_->set("events/" + id + "/0/1", "events");
    store_->append("ask/" + id, "somebody 1 sample");
    store_->append("ask/" + id, "somebody 2 sample");
  }

  // The next order of this kind. The log's entries are read in turn, as hosts do.
  Order next(Order::Kind kind) {
    for (;;) {
      const std::string key = log_entry_key(kOrders, next_order_++);
      Order order = read_order(*store_, store_->get(key, kLong));
      if (order.kind == kind)
        return order;
    }
  }

  // Host `name` is lost, all others end their ranks, and `newcomer` joins.
  Order change(const std::vector<std::string>& others,
               const std::string& name,
               const std::string& newcomer,
               int round) {
    report({.kind = Report::Kind::lost, .from = "id-" + name});
    next(Order::Kind::stop);
    join(newcomer);
    for (const std::string& other : others)
      report({.kind = Report::Kind::ended, .from = "id-" + other, .round = round});
    return next(Order::Kind::start);
  }

  std::shared_ptr<CountingStore> store_ = std::make_shared<CountingStore>(400);
  int number_ = 0;
  int64_t next_order_ = 1;
};

TEST_F(CoordinatorOverAStore, ItsLogsDoNotGrowWhileHostsComeAndGo) {
  const auto first = coordinator();
  join("0");
  join("1");
  join("2");
  EXPECT_THAT(next(Order::Kind::start).hosts, ElementsAre("id-0", "id-1", "id-2"));
  int64_t most = 0;
  for (int round = 1; round <= 50; ++round) {
    const std::string gone = cat(round - 1);
    const std::vector<std::string> others = {cat(round), cat(round + 1)};
    leave_telemetry(gone);
    const Order order = change(others, gone, cat(round + 2), round);
    EXPECT_EQ(order.round, round + 1);
    EXPECT_THAT(order.hosts,
                ElementsAre("id-" + others[0], "id-" + others[1], "id-" + cat(round + 2)));
    most = std::max(most, store_->num_keys());
  }
  // Three joins, the sizes of both logs, the age of the job; and of the last two rounds an
  // order in some parts, a refusal, a stop, three reports and what the host left each.
  EXPECT_LT(most, 90);
}

// Their signs of life are looked for while they are there. A host may be given up before it leaves.
TEST_F(CoordinatorOverAStore, ItForgetsHostsThatHaveLeft) {
  CoordinatorThreadOptions options = options_of(/*take_over=*/false);
  options.silence = Silence(milliseconds(1'600));
  const auto coordinates = coordinator(between(2, 3), options);
  const auto wait_until = [&](const auto& has_come) {
    const Deadline deadline(kLong);
    while (!deadline.passed() && !has_come())
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(has_come());
  };
  for (int host = 0; host < 5; ++host) {
    const int watches = store_->watches_of_hosts();
    join(cat(host));
    wait_until([&] { return store_->watches_of_hosts() > watches; });
    report({.kind = Report::Kind::leave, .from = "id-" + cat(host)});
    const int empty_watches = store_->watches_of_nobody();
    wait_until([&] { return store_->watches_of_nobody() > empty_watches; });
    wait_until([&] { return coordinates->remembered() == 0; });
  }
}

TEST_F(CoordinatorOverAStore, ASuccessorReadsWhatIsLeftOfTheLogs) {
  auto first = coordinator();
  join("0");
  join("1");
  join("2");
  next(Order::Kind::start);
  for (int round = 1; round <= 10; ++round)
    change({cat(round), cat(round + 1)}, cat(round - 1), cat(round + 2), round);
  first.reset();
  const auto second = coordinator(/*take_over=*/true);
  const Order order = change({"11", "12"}, "10", "13", 11);
  EXPECT_EQ(order.round, 12);
  EXPECT_THAT(order.hosts, ElementsAre("id-11", "id-12", "id-13"));
  report({.kind = Report::Kind::ended, .from = "id-11", .round = 12});
  report({.kind = Report::Kind::ended, .from = "id-12", .round = 12});
  report({.kind = Report::Kind::ended, .from = "id-13", .round = 12});
  EXPECT_EQ(next(Order::Kind::finish).exit_code, 0);
}

// However many have come and gone. The first host is there from the beginning on, and its join is
// the first entry.
TEST_F(CoordinatorOverAStore, ASuccessorAsksForWhatIsThereAlone) {
  auto coordinates = coordinator();
  join("0");
  join("1");
  join("2");
  next(Order::Kind::start);
  const auto questions_of_successor = [&](int first, int last) {
    for (int round = first; round <= last; ++round)
      change({"0", cat(round + 1)}, cat(round), cat(round + 2), round);
    coordinates.reset();
    const int before = store_->questions();
    coordinates = coordinator(/*take_over=*/true);
    change({"0", cat(last + 2)}, cat(last + 1), cat(last + 3), last + 1);  // it has read them
    return store_->questions() - before;
  };
  const int few = questions_of_successor(1, 10);
  const int many = questions_of_successor(12, 600);
  EXPECT_LE(many, few + 3) << "and " << few << " after ten";
}

// The time limit is the job's, whoever coordinates it, and whatever the time of day is there.
TEST_F(CoordinatorOverAStore, ASuccessorsClockDoesNotEndTheJob) {
  CoordinatorRules rules = between(2, 3);
  rules.time_limit = std::chrono::minutes(30);
  const auto at = [&](bool take_over, std::chrono::hours jump) {
    CoordinatorThreadOptions options = options_of(take_over);
    options.silence = Silence(std::chrono::seconds(15));
    options.time_of_day = [jump] {
      return milliseconds(std::chrono::hours(500'000) + jump);
    };
    return coordinator(rules, options);
  };
  auto first = at(/*take_over=*/false, std::chrono::hours(0));
  join("0");
  store_->get("age", kLong);
  first.reset();
  at(/*take_over=*/true, std::chrono::hours(-1)).reset();
  auto second = at(/*take_over=*/true, std::chrono::hours(1));
  join("1");
  join("2");
  EXPECT_THAT(next(Order::Kind::start).hosts, ElementsAre("id-0", "id-1", "id-2"));
  second.reset();
  const milliseconds limit = *rules.time_limit;
  store_->set("age", cat(limit.count(), " 0"));
  const auto third = at(/*take_over=*/true, std::chrono::hours(0));
  next(Order::Kind::stop);
}

// As --map-command asks one.
TEST_F(CoordinatorOverAStore, TheTimeLimitEndsAQuestionOfThePlanners) {
  join("a");
  join("b");
  CoordinatorRules rules = between(2, 3);
  rules.last_call = milliseconds(0);
  rules.time_limit = milliseconds(500);
  const auto ask = [](const std::vector<HostFacts>& /*hosts*/) -> Plan {
    (void)output_of_command("exec sleep 1000", "--map-command");
    return {};
  };
  const CoordinatorThread coordinator(store_, rules, ask, options_of(false));
  EXPECT_EQ(next(Order::Kind::finish).exit_code, kTimeLimitExitCode);
}

}  // namespace
}  // namespace muster
