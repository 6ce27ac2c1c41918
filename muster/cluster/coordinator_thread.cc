// Reports and orders are two logs in the store, each entry under its number. The thread reads the
// reports in order, hands them to the Coordinator and appends its orders. A successor reads both
// logs first, and so comes to the state of the one before.
#include "muster/cluster/coordinator_thread.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kTick{200};
constexpr size_t kShownInLog = 200;

// The entry of that number; nothing if it does not come in time.
std::optional<std::string> entry(Store& store,
                                 const char* log,
                                 int64_t number,
                                 std::chrono::milliseconds wait) {
  const std::string key = log_entry_key(log, number);
  if (wait.count() == 0 && !store.check({key}))
    return std::nullopt;
  try {
    return store.get(key, wait);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout)
      return std::nullopt;
    throw;
  }
}

// Thrown when another host has taken this one's part.
class Deposed : public Error {
 public:
  Deposed() : Error(ErrorCode::failed_precondition, "another host coordinates this job now") {}
};

}  // namespace

std::string sign_of_life_key(const std::string& id) {
  return cat("alive/", id);
}

CoordinatorThread::CoordinatorThread(std::shared_ptr<Store> store,
                                     CoordinatorRules rules,
                                     Coordinator::Planner planner,
                                     CoordinatorThreadOptions options)
    : store_(std::move(store)),
      options_(options),
      coordinator_(
          std::move(rules),
          std::move(planner),
          [](const std::string& line) { log(LogLevel::info, line); },
          Clock::now()),
      next_watch_(Clock::now() + options.silence.step()) {
  // Signals are for the agent's own thread.
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

CoordinatorThread::~CoordinatorThread() {
  stop_ = true;
  thread_.join();
}

bool CoordinatorThread::wait(std::chrono::milliseconds patience) {
  const Deadline deadline(patience);
  while (!done_ && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return all_left_;
}

std::optional<Order> CoordinatorThread::result() const {
  const std::lock_guard lock(mutex_);
  return result_;
}

void CoordinatorThread::run() {
  try {
    serve();
  } catch (const Deposed& deposed) {
    log(LogLevel::warn, deposed.message());
  } catch (const std::exception& error) {
    if (!stop_)
      give_up(error.what());
  }
  done_ = true;
}

// Ends the job, as nobody must wait for orders that will not come.
void CoordinatorThread::give_up(const std::string& why) {
  log(LogLevel::error, cat("coordinator: ", why));
  try {
    give({{.kind = Order::Kind::finish,
           .reason = cat("the job cannot be coordinated any more: ", why),
           .exit_code = 1}});
  } catch (const std::exception& error) {
    log(LogLevel::error, cat("coordinator: ", error.what()));
    broken_ = true;
  }
}

// The orders that follow from the next report, or from the time if none comes within a tick. A
// report that cannot be read is passed over.
std::vector<Order> CoordinatorThread::next_orders(int64_t& next_report) {
  const auto text = entry(*store_, kReports, next_report, kTick);
  if (!text)
    return coordinator_.on_tick(Clock::now());
  log(LogLevel::debug, cat("report ", next_report++, ": ", text->substr(0, kShownInLog)));
  try {
    return coordinator_.on_report(report_from_text(*text), Clock::now());
  } catch (const Error& error) {
    log(LogLevel::error, cat("coordinator: ", error.message()));
    return {};
  }
}

void CoordinatorThread::serve() {
  int64_t next_report = 1;
  if (options_.take_over) {
    take_over(next_report);
  } else {
    age_of_job();  // which begins now
  }
  while (!stop_) {
    std::vector<Order> orders = next_orders(next_report);
    watch_signs_of_life(orders);
    give(orders);
    if (coordinator_.finished() && !coordinator_.has_hosts()) {
      all_left_ = true;
      return;
    }
  }
}

// Joins and losses are replayed at once. Ends of ranks count only after the orders, which say of
// which round they are.
void CoordinatorThread::take_over(int64_t& next_report) {
  const std::chrono::milliseconds now(0);
  std::vector<Report> ends;
  while (const auto text = entry(*store_, kReports, next_report, now)) {
    ++next_report;
    const Report report = report_from_text(*text);
    coordinator_.replay(report);
    if (report.kind == Report::Kind::failing || report.kind == Report::Kind::ended ||
        report.kind == Report::Kind::stop) {
      ends.push_back(report);
    }
  }
  while (const auto text = entry(*store_, kOrders, next_order_, now)) {
    ++next_order_;
    coordinator_.replay(order_from_text(*text));
  }
  give(coordinator_.resume(Clock::now(), age_of_job()));
  for (const Report& report : ends)
    give(coordinator_.on_report(report, Clock::now()));
}

// How long ago the job began, by the clock of the host that began it: after a takeover the age may
// be as wrong as the hosts' clocks differ.
std::chrono::milliseconds CoordinatorThread::age_of_job() {
  using std::chrono::milliseconds;
  const auto now =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  const auto began = parse_int(store_->compare_set("began", "", cat(now.count())));
  return std::max(milliseconds(0), now - milliseconds(began.value_or(now.count())));
}

// Each order has its number, which only one coordinator can take. A coordinator that was given up
// for dead, and finds another's order there, is deposed. Throws: Deposed.
void CoordinatorThread::give(const std::vector<Order>& orders) {
  for (const Order& order : orders) {
    const std::string text = to_text(order);
    log(LogLevel::debug, cat("order ", next_order_, ": ", text.substr(0, kShownInLog)));
    if (store_->compare_set(log_entry_key(kOrders, next_order_), "", text) != text)
      throw Deposed();
    store_->add(log_size_key(kOrders), 1);
    if (order.kind == Order::Kind::finish) {
      const std::lock_guard lock(mutex_);
      result_ = order;
    }
    ++next_order_;
  }
}

// A host counts its sign up as long as it lives; a value that stays the same for too long is its
// loss.
void CoordinatorThread::watch_signs_of_life(std::vector<Order>& orders) {
  const auto now = Clock::now();
  if (now < next_watch_)
    return;
  next_watch_ = now + options_.silence.step();
  const auto add = [&](std::vector<Order> more) {
    std::ranges::move(more, std::back_inserter(orders));
  };
  for (const std::string& id : coordinator_.live_hosts()) {
    const std::string key = sign_of_life_key(id);
    const std::string value =
        store_->check({key}) ? store_->get(key, std::chrono::milliseconds(0)) : "";
    const auto known = signs_.find(id);
    if (known == signs_.end() || known->second.value != value) {
      signs_[id] = {value, now};
      add(coordinator_.on_sign_of_life(id, now));
      continue;
    }
    const auto silent = now - known->second.since;
    if (silent < options_.silence.is_gone_after())
      continue;
    signs_.erase(known);
    log(LogLevel::warn,
        cat("no sign of life from host ",
            coordinator_.name_of(id),
            " for ",
            format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(silent))));
    add(coordinator_.on_report({.kind = Report::Kind::lost, .from = id}, now));
  }
}

}  // namespace muster
