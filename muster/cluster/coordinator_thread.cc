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
#include <span>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/cluster/host_telemetry.h"
#include "muster/cluster/kept_entries.h"
#include "muster/cluster/order_log.h"
#include "muster/supervise/command_output.h"

namespace muster {

namespace {

constexpr milliseconds kTick{200};
constexpr auto kAge = "age";  // a key
constexpr int64_t kReadAtATime = 256;

// The report of that number; nothing if it does not come within a tick.
std::optional<std::string> next_report_in(Store& store, int64_t number) {
  try {
    return store.get(log_entry_key(kReports, number), kTick);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout)
      return std::nullopt;
    throw;
  }
}

// Calls `read` with the number and the text of each entry that the log has. Returns the number of
// the next one. Entries that were history are not there any more; the size may lag behind by one.
template <class Read>
int64_t read_log(Store& store, const char* log, const Read& read) {
  const int64_t size = store.add(log_size_key(log), 0);
  KeptEntries entries = KeptEntries::from_text(store.value(kept_entries_key(log)));
  const int64_t listed_up_to = std::max(size, entries.from_here_on() - 1);
  for (;;) {
    const Int64s numbers = entries.take(kReadAtATime);
    const auto found = store.values(
        mapped(numbers, [&](const int64_t number) { return log_entry_key(log, number); }));
    for (const size_t i : indices_of(numbers)) {
      if (!found[i] && numbers[i] > listed_up_to)
        return numbers[i];
      if (found[i])
        read(numbers[i], *found[i]);
    }
  }
}

// Thrown when another host has taken this one's part.
struct Deposed : Error {
  Deposed() : Error(ErrorCode::failed_precondition, "another host coordinates this job now") {}
};

}  // namespace

CoordinatorThread::CoordinatorThread(SharedStore store,
                                     CoordinatorRules rules,
                                     Coordinator::Planner planner,
                                     CoordinatorThreadOptions options)
    : store_(std::move(store)),
      options_(options),
      coordinator_(
          std::move(rules),
          std::move(planner),
          [](const std::string& line) { log_info(line); },
          Clock::now()),
      history_(options.keeps_history.value_or(options.silence.is_gone_after())),
      next_watch_(Clock::now() + options.silence.step()) {
  // Signals are for the agent's own thread.
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

CoordinatorThread::~CoordinatorThread() {
  stop_ = true;
  thread_.join();
}

bool CoordinatorThread::wait(milliseconds patience) {
  const Deadline deadline(patience);
  while (!done_ && !deadline.passed())
    std::this_thread::sleep_for(milliseconds(5));
  return all_left_;
}

std::optional<Order> CoordinatorThread::result() const {
  const Lock lock(mutex_);
  return result_;
}

bool CoordinatorThread::has_joined(const std::string& host) const {
  const Lock lock(mutex_);
  return joined_.contains(host);
}

void CoordinatorThread::run() {
  try {
    serve();
  } catch (const Deposed& deposed) {
    log_warning(deposed.message());
  } catch (const std::exception& error) {
    if (!stop_)
      give_up(error.what());
  }
  done_ = true;
}

// Ends the job, as nobody must wait for orders that will not come.
void CoordinatorThread::give_up(const std::string& why) {
  log_error("coordinator: ", why);
  try {
    give({{.kind = Order::Kind::finish,
           .reason = cat("the job cannot be coordinated any more: ", why),
           .exit_code = 1}});
  } catch (const std::exception& error) {
    log_error("coordinator: ", error.what());
    broken_ = true;
  }
}

// The orders that follow from the next report, or from the time if none comes within a tick. A
// report that cannot be read is passed over.
Orders CoordinatorThread::next_orders() {
  const auto text = next_report_in(*store_, next_report_);
  const auto now = Clock::now();
  if (!text)
    return coordinator_.on_tick(now);
  const int64_t number = next_report_++;
  try {
    Report report = report_from_text(*text);
    log_debug("report ", number, ": ", to_string(report.kind), " of ", report.from);
    history_.note(number, report, now);
    if (options_.notes_joins && report.kind == Report::Kind::join && report.facts) {
      const Lock lock(mutex_);
      joined_.insert(report.facts->host.name);
    }
    return coordinator_.on_report(std::move(report), now);
  } catch (const Error& error) {
    log_error("coordinator: ", error.message());
    return {};
  }
}

// Whether the job is to end, by a report that has not been taken yet: then no answer to the
// planner's questions is wanted. What cannot be read now is another function's error.
bool CoordinatorThread::is_stop_reported() const {
  try {
    for (int64_t number = next_report_;; ++number) {
      const auto text = store_->value(log_entry_key(kReports, number));
      if (!text)
        return false;
      if (report_from_text(*text).kind == Report::Kind::stop)
        return true;
    }
  } catch (const Error&) {
    return false;
  }
}

void CoordinatorThread::serve() {
  const AlsoStopped while_planning(
      [this] { return is_stop_reported() || coordinator_.time_limit_is_over(Clock::now()); });
  if (options_.take_over) {
    take_over();
  } else {
    tell_age();
  }
  while (!stop_) {
    Orders orders = next_orders();
    watch_signs_of_life(orders);
    give(orders);
    forget_history();
    remembered_ = coordinator_.remembered() + signs_.size();
    if (coordinator_.finished() && !coordinator_.has_hosts()) {
      all_left_ = true;
      return;
    }
  }
}

// The history notes the orders first: a report of the last round comes after the order to start it.
// The plan of an order to start that is not the last may be gone: the coordinator before was about
// to remove its entry.
void CoordinatorThread::take_over() {
  const auto now = Clock::now();
  Orders orders;
  std::optional<Error> unread;  // of an order to start, and of none behind it
  next_order_ = read_log(*store_, kOrders, [&](int64_t number, const std::string& entry) {
    try {
      orders.push_back(read_order(*store_, entry));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout)
        throw;
      unread = error;
      return;
    }
    if (orders.back().kind == Order::Kind::start)
      unread.reset();
    history_.note(orders.back(), keys_of_order(number, entry, orders.back().stored), now);
  });
  if (unread)
    throw Error(*unread);
  Reports reports;
  next_report_ = read_log(*store_, kReports, [&](int64_t number, const std::string& text) {
    reports.push_back(report_from_text(text));
    history_.note(number, reports.back(), now);
  });
  const milliseconds age = age_of_job();
  began_ = now - age;
  give(coordinator_.take_over(reports, orders, now, age));
}

milliseconds CoordinatorThread::time_of_day() const {
  if (options_.time_of_day)
    return options_.time_of_day();
  return std::chrono::duration_cast<milliseconds>(WallClock::now().time_since_epoch());
}

// "<the job's age> <the time of day>", in milliseconds.
void CoordinatorThread::tell_age() {
  const auto age = std::chrono::duration_cast<milliseconds>(Clock::now() - began_);
  store_->set(kAge, cat(age.count(), " ", time_of_day().count()));
}

// As the coordinator before told it last, and the time since, which only the hosts' clocks know:
// where they differ, or one has jumped, it is at most the time that a takeover takes.
milliseconds CoordinatorThread::age_of_job() const {
  const Strings told = split(store_->value(kAge).value_or("0 0"), ' ');
  const milliseconds age(parse_int(told.front()).value_or(0));
  const milliseconds then(parse_int(told.back()).value_or(0));
  const milliseconds most = options_.silence.is_gone_after() + 2 * options_.silence.step();
  return age + std::clamp(time_of_day() - then, milliseconds(0), most);
}

// Each order has its number, which only one coordinator can take. A coordinator that was given up
// for dead, and finds another's order there, is deposed. Throws: Deposed.
void CoordinatorThread::give(const Orders& orders) {
  for (const Order& order : orders) {
    log_debug("order ", next_order_, ": ", to_string(order.kind), ", round ", order.round);
    const WrittenOrder written = write_order(*store_, next_order_, order);
    if (!written.is_ours)
      throw Deposed();
    history_.note(order, written.keys, Clock::now());
    if (order.kind == Order::Kind::finish) {
      const Lock lock(mutex_);
      result_ = order;
    }
    ++next_order_;
  }
}

// A host counts its sign up as long as it lives; a value that stays the same for too long is its
// loss.
void CoordinatorThread::watch_signs_of_life(Orders& orders) {
  const auto now = Clock::now();
  if (now < next_watch_)
    return;
  next_watch_ = now + options_.silence.step();
  tell_age();
  const auto add = [&](Orders more) {
    std::ranges::move(more, std::back_inserter(orders));
  };
  const Strings ids = coordinator_.live_hosts();
  // Those of hosts that have left go.
  std::erase_if(signs_,
                [&](const auto& sign) { return !std::ranges::binary_search(ids, sign.first); });
  const auto keys = mapped(ids, sign_of_life_key);
  const auto values = store_->values(keys);
  for (const size_t i : indices_of(ids)) {
    const std::string& id = ids[i];
    const auto value = values[i].value_or("");
    const SignOfLife* const known = value_at(signs_, id);
    if (known == nullptr || known->value != value) {
      signs_[id] = {value, now};
      add(coordinator_.on_sign_of_life(id, now));
      continue;
    }
    const auto silent = now - known->since;
    if (silent < options_.silence.is_gone_after())
      continue;
    signs_.erase(id);
    log_warning(
        "no sign of life from host ", coordinator_.name_of(id), " for ", format_duration(silent));
    add(coordinator_.on_report({.kind = Report::Kind::lost, .from = id}, now));
  }
}

// Without a new list a successor reads by the one before, or all: that is only slower.
void CoordinatorThread::tell_kept_entries() {
  for (const auto& [key, list] : history_.take_lists()) {
    if (list.size() <= store_->max_value_bytes())
      store_->set(key, list);
  }
}

// An order's entry goes before its plan, so where the store does not answer, the rest waits.
void CoordinatorThread::forget_history() {
  const Strings keys = history_.take_due(Clock::now());
  size_t removed = 0;
  try {
    for (; removed < keys.size(); ++removed) {
      if (const auto host = host_of_sign_of_life(keys[removed]))
        forget_host_telemetry(*store_, *host);
      store_->remove(keys[removed]);
    }
    tell_kept_entries();
  } catch (const Error& error) {
    log_debug("coordinator: what is of no use stays in the store: ", error.message());
    history_.put_back(std::span(keys).subspan(removed), Clock::now());
  }
}

}  // namespace muster
