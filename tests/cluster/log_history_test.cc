#include "muster/cluster/log_history.h"

#include <gmock/gmock.h>

namespace muster {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

// A history whose clock the test moves.
class Logs {
 public:
  void report(Report::Kind kind, const std::string& id, int stopped_by = 0) {
    history_.note(++reports_, Report{.kind = kind, .from = id, .stopped_by = stopped_by}, now_);
  }
  void order(Order::Kind kind, const std::vector<std::string>& hosts = {}) {
    history_.note(
        Order{.kind = kind, .hosts = hosts}, {"orders/" + std::to_string(++orders_)}, now_);
  }
  std::vector<std::string> due_after(seconds time) {
    now_ += time;
    return history_.take_due(now_);
  }

 private:
  LogHistory history_{seconds(10)};
  Clock::time_point now_;
  int64_t reports_ = 0;
  int64_t orders_ = 0;
};

TEST(LogHistory, KeepsWhatASuccessorNeeds) {
  Logs logs;
  logs.report(Report::Kind::join, "a");
  logs.report(Report::Kind::join, "b");
  logs.order(Order::Kind::start, {"a", "b"});
  logs.report(Report::Kind::failing, "a");
  logs.order(Order::Kind::stop);
  logs.report(Report::Kind::ended, "a");
  logs.report(Report::Kind::ended, "b");
  EXPECT_THAT(logs.due_after(seconds(1000)), IsEmpty());
}

TEST(LogHistory, AnOrderToStartMakesHistoryOfWhatWasBefore) {
  Logs logs;
  logs.report(Report::Kind::join, "a");
  logs.order(Order::Kind::start, {"a"});
  logs.report(Report::Kind::failing, "a");
  logs.order(Order::Kind::stop);
  logs.report(Report::Kind::ended, "a");
  logs.order(Order::Kind::start, {"a"});
  EXPECT_THAT(logs.due_after(seconds(9)), IsEmpty()) << "a host that lives may still read it";
  EXPECT_THAT(logs.due_after(seconds(1)),
              ElementsAre("reports/2", "reports/3", "orders/1", "orders/2"));
  EXPECT_THAT(logs.due_after(seconds(1000)), IsEmpty());
}

TEST(LogHistory, TheJoinOfAHostGoesBeforeItsLeave) {
  for (const Report::Kind end : {Report::Kind::leave, Report::Kind::lost}) {
    Logs logs;
    logs.report(Report::Kind::join, "a");
    logs.report(Report::Kind::join, "b");
    logs.report(end, "a");
    EXPECT_THAT(logs.due_after(seconds(10)), ElementsAre("reports/1", "alive/a", "reports/3"));
  }
}

TEST(LogHistory, AHostOfTheRoundIsOneUntilTheNextRoundStarts) {
  Logs logs;
  logs.report(Report::Kind::join, "a");
  logs.report(Report::Kind::join, "b");
  logs.order(Order::Kind::start, {"a", "b"});
  logs.report(Report::Kind::ended, "a");
  logs.report(Report::Kind::lost, "a");
  logs.order(Order::Kind::refuse, {"a"});
  logs.order(Order::Kind::stop);
  EXPECT_THAT(logs.due_after(seconds(1000)), IsEmpty()) << "a successor must know how it ended";
  logs.order(Order::Kind::start, {"b"});
  EXPECT_THAT(
      logs.due_after(seconds(10)),
      ElementsAre(
          "reports/1", "alive/a", "reports/3", "reports/4", "orders/1", "orders/2", "orders/3"));
}

TEST(LogHistory, AHostThatIsRefusedIsForgotten) {
  Logs logs;
  logs.report(Report::Kind::join, "a");
  logs.order(Order::Kind::refuse, {"a"});
  EXPECT_THAT(logs.due_after(seconds(10)), ElementsAre("reports/1", "alive/a"));
}

TEST(LogHistory, AHostThatWasStoppedIsForgottenWithTheNextRound) {
  Logs logs;
  logs.report(Report::Kind::join, "a");
  logs.report(Report::Kind::join, "b");
  logs.order(Order::Kind::start, {"a", "b"});
  logs.report(Report::Kind::ended, "a", SIGTERM);
  EXPECT_THAT(logs.due_after(seconds(10)), IsEmpty());
  logs.order(Order::Kind::start, {"b"});
  EXPECT_THAT(logs.due_after(seconds(10)),
              ElementsAre("reports/1", "alive/a", "reports/3", "orders/1"));
}

TEST(LogHistory, ManyKeysAreTakenAFewAtATime) {
  Logs logs;
  for (int i = 0; i < 1000; ++i)
    logs.report(Report::Kind::ended, "a");
  logs.order(Order::Kind::start);
  size_t taken = 0;
  for (auto keys = logs.due_after(seconds(10)); !keys.empty(); keys = logs.due_after(seconds(0))) {
    EXPECT_LE(keys.size(), 100U);
    taken += keys.size();
  }
  EXPECT_EQ(taken, 1000U);
}

}  // namespace
}  // namespace muster
