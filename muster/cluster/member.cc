// The listener asks for the next order for one step of the silence at a time, with a sign of life
// before each. The sender takes reports from a queue. Both try again when the store does not
// answer; `lost` says when it is too late for that.
#include "muster/cluster/member.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/cluster/order_log.h"

namespace muster {

namespace {

constexpr auto kCoordinatorKey = "coordinator";

// Whether another try may find the store again.
bool may_pass(const Error& error) {
  return error.code() == ErrorCode::unavailable || error.code() == ErrorCode::timeout;
}

}  // namespace

Member::Member(SharedStore store, const HostFacts& facts, const MemberOptions& options)
    : options_(options),
      id_(facts.id),
      store_(std::move(store)),
      served_(dynamic_cast<TcpStore*>(store_.get())),
      ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!ready_.valid())
    fail_errno("member: cannot make an eventfd", errno);
  give_sign_of_life();
  // Orders from before this host came are not for it.
  int64_t next = store_->add(log_size_key(kOrders), 0) + 1;
  while (store_->check({log_entry_key(kOrders, next)}))
    ++next;
  log_ = OrderReader(next);
  store_->append(kReports,
                 to_text(Report{.kind = Report::Kind::join, .from = id_, .facts = facts}));
  begin();
}

Member::~Member() {
  end();
}

// A thread that runs already ends where the other cannot be made.
void Member::begin() {
  const BlockedSignals blocked;  // in the threads, for good
  try {
    listener_ = std::thread([this] { listen(); });
    sender_ = std::thread([this] { send_reports(); });
  } catch (...) {
    end();
    throw;
  }
}

void Member::end() {
  {
    const Lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread* const thread : {&sender_, &listener_}) {
    if (thread->joinable())
      thread->join();
  }
}

void Member::report(Report report) {
  report.from = id_;
  report.number = next_number_++;
  {
    const Lock lock(mutex_);
    reports_.push_back(std::move(report));
  }
  changed_.notify_all();
}

// The descriptor stays readable for a host that is lost, so that its agent asks why.
std::optional<Order> Member::take() {
  const Lock lock(mutex_);
  if (orders_.empty()) {
    uint64_t ignored = 0;
    if (lost_.empty())
      (void)!::read(ready_.get(), &ignored, sizeof(ignored));
    return std::nullopt;
  }
  Order order = std::move(orders_.front());
  orders_.pop();
  return order;
}

// The silence counts from the last sign of life that arrived.
std::string Member::lost() {
  const Lock lock(mutex_);
  if (!lost_.empty() || finished_)
    return lost_;
  const auto silent = Clock::now() - reached_;
  if (silent <= options_.silence.gives_itself_up_after())
    return "";
  lost_ =
      cat("no answer for ", format_duration(silent), last_error_.empty() ? "" : ": ", last_error_);
  changed_.notify_all();
  return lost_;
}

// The first reason counts.
void Member::lose(const std::string& why) {
  {
    const Lock lock(mutex_);
    if (lost_.empty())
      lost_ = why;
  }
  changed_.notify_all();
  wake();
}

void Member::wake() const {
  const uint64_t one = 1;
  (void)!::write(ready_.get(), &one, sizeof(one));
}

// `asked` is when the sign was given, as its arrival may have taken long.
void Member::reached(TimePoint asked) {
  const Lock lock(mutex_);
  reached_ = std::max(reached_, asked);
  refused_since_.reset();
  last_error_.clear();
}

// A server that has ended refuses connections, and so may a firewall for a moment. A refusal is
// believed if it lasts for a step.
void Member::failed(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  if (known == nullptr || !may_pass(*known))
    return lose(error.what());
  UniqueLock lock(mutex_);
  last_error_ = error.what();
  if (dynamic_cast<const StoreGone*>(&error) == nullptr) {
    refused_since_.reset();
    return;
  }
  const auto now = Clock::now();
  if (!refused_since_)
    refused_since_ = now;
  const bool gone = now - *refused_since_ >= options_.silence.step();
  lock.unlock();
  if (gone)
    lose(error.what());
}

// A coordinator whose name is gone has no silence to be waited for: another takes the part at once.
void Member::resign() {
  {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [this] { return reports_.empty() || !lost_.empty(); });
  }
  try {
    if (store_->compare_set(kCoordinatorKey, id_, id_) == id_)
      store_->remove(kCoordinatorKey);
  } catch (const std::exception& error) {
    log_debug(error.what());  // its silence will tell
  }
}

Member::Part Member::take_part() {
  return part_.exchange(Part::none);
}

// The end of this process is noticed at once where a server holds a connection to it. Elsewhere it
// is noticed by the end of the signs of life.
void Member::give_sign_of_life() {
  const auto now = Clock::now();
  store_->add(sign_of_life_key(id_), 1);
  reached(now);
  if (served_ == nullptr || served_->has_will())
    return;
  served_->append_when_lost(kReports, to_text(Report{.kind = Report::Kind::lost, .from = id_}));
}

// The first to write its name is the coordinator; whoever replaces the name of one that has fallen
// silent is its successor.
void Member::elect() {
  const auto chosen = store_->compare_set(kCoordinatorKey, "", id_);
  if (chosen == id_) {
    if (std::exchange(coordinator_, chosen) == id_)
      return;
    // Orders before this host's are those of a coordinator that has handed over.
    const bool has_orders =
        store_->add(log_size_key(kOrders), 0) > 0 || store_->check({log_entry_key(kOrders, 1)});
    part_ = has_orders ? Part::successor : Part::first;
    return;
  }
  const auto key = sign_of_life_key(chosen);
  const auto sign = store_->value(key).value_or("");
  if (chosen != coordinator_ || sign != coordinators_sign_) {
    coordinator_ = chosen;
    coordinators_sign_ = sign;
    sign_since_ = Clock::now();
    return;
  }
  if (Clock::now() - sign_since_ < options_.silence.is_gone_after())
    return;
  if (store_->compare_set(kCoordinatorKey, chosen, id_) != id_)
    return;
  log_warning("the host that coordinated this job is gone; this host coordinates now");
  coordinator_ = id_;
  part_ = Part::successor;
}

// Waits a step at most. Throws: failed_precondition where the job's keys have been removed, or the
// order has: then every host that lives has read it, and the others have given this one up.
void Member::take_next_orders() {
  const Strings entries = log_.read(*store_, options_.silence.step());
  for (const auto& entry : entries) {
    if (take_order(entry))
      return;  // what follows the last order is for hosts that came too late
  }
  if (!entries.empty())
    return;
  const auto found = store_->values({log_size_key(kReports), log_size_key(kOrders)});
  if (!found[0]) {
    throw failed_precondition("somebody has removed what the store had of this job");
  }
  const bool was_given = parse_int(found[1].value_or("0")).value_or(0) >= log_.next();
  if (!was_given || store_->check({log_entry_key(kOrders, log_.next())}))
    return;
  throw failed_precondition(
      "this host was not heard for so long that the others went on without it");
}

// The agent is woken for each, as the next may take long to read, or fail. Returns whether it was
// the last.
bool Member::take_order(const std::string& entry) {
  Order order = read_order_of_host(*store_, entry, id_);  // where this fails, it is asked for again
  log_.pass();
  const bool is_last = order.kind == Order::Kind::finish;
  {
    const Lock lock(mutex_);
    finished_ = is_last;
    orders_.push(std::move(order));
  }
  wake();
  return is_last;
}

// The listener's thread. The lock is not held while the store is asked.
void Member::listen() {
  const auto is_over = [this] {
    return ends_ || finished_ || !lost_.empty();
  };
  UniqueLock lock(mutex_);
  while (!is_over()) {
    lock.unlock();
    const auto next_try = Clock::now() + options_.silence.step();
    bool answered = true;
    try {
      give_sign_of_life();
      if (options_.elects)
        elect();
      if (part_ != Part::none)
        wake();
      take_next_orders();
    } catch (const std::exception& error) {
      answered = false;
      failed(error);
    }
    lock.lock();
    if (!answered)
      changed_.wait_until(lock, next_try, is_over);
  }
}

// The sender's thread. A report leaves the queue when the store has it.
void Member::send_reports() {
  UniqueLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !reports_.empty() || !lost_.empty(); });
    if (!lost_.empty() || reports_.empty())
      break;
    const Report report = reports_.front();
    lock.unlock();
    const bool was_sent = sent(report);
    lock.lock();
    if (was_sent) {
      reports_.pop_front();
      changed_.notify_all();
    } else {
      changed_.wait_for(lock, options_.silence.step(), [this] { return !lost_.empty(); });
    }
  }
}

// A report that arrived without an answer is told twice; its number says so.
bool Member::sent(const Report& report) {
  try {
    store_->append(kReports, to_text(report));
    return true;
  } catch (const std::exception& error) {
    failed(error);
    (void)lost();  // the agent may wait for this thread to end
    return false;
  }
}

}  // namespace muster
