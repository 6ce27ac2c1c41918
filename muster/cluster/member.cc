#include "muster/cluster/member.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/cluster/coordinator_thread.h"
#include "muster/store/tcp_store.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kSignEvery{1'000};
constexpr const char* kCoordinatorKey = "coordinator";

}  // namespace

Member::Member(std::shared_ptr<Store> store, const HostFacts& facts,
               std::optional<std::chrono::milliseconds> electing)
    : id_(facts.id),
      store_(std::move(store)),
      ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      electing_(electing) {
  if (!ready_.valid()) fail_errno("member: cannot make an eventfd", errno);
  store_->add(sign_of_life_key(id_), 1);
  // A server notices at once when this process is killed; without one, the signs of life end.
  if (auto* const served = dynamic_cast<TcpStore*>(store_.get()))
    served->append_when_lost(kReports, to_text(Report{.kind = Report::Kind::lost, .from = id_}));
  // What was ordered before this host came is not for it.
  next_order_ = store_->add(log_size_key(kOrders), 0) + 1;
  while (store_->check({log_entry_key(kOrders, next_order_)})) ++next_order_;
  store_->append(kReports, to_text(Report{.kind = Report::Kind::join, .from = id_, .facts = facts}));
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { listen(); });
}

Member::~Member() {
  stop_ = true;
  thread_.join();
}

void Member::report(Report report) {
  report.from = id_;
  report.number = next_number_++;
  try {
    store_->append(kReports, to_text(report));
  } catch (const std::exception& error) {
    log(LogLevel::debug, cat("cannot report to the coordinator: ", error.what()));
  }
}

std::optional<Order> Member::take() {
  const std::lock_guard lock(mutex_);
  if (orders_.empty()) {
    uint64_t ignored = 0;
    if (lost_.empty()) (void)!::read(ready_.get(), &ignored, sizeof(ignored));
    return std::nullopt;
  }
  Order order = std::move(orders_.front());
  orders_.pop();
  return order;
}

std::string Member::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Member::wake() const {
  const uint64_t one = 1;
  (void)!::write(ready_.get(), &one, sizeof(one));
}

void Member::resign() {
  try {
    if (store_->compare_set(kCoordinatorKey, id_, id_) == id_) store_->remove(kCoordinatorKey);
  } catch (const std::exception& error) {
    log(LogLevel::debug, error.what());  // its silence will tell
  }
}

Member::Part Member::take_part() {
  return part_.exchange(Part::none);
}

// The first to write its name is the coordinator; whoever replaces the name of one that has fallen silent is
// its successor.
void Member::elect() {
  const std::string chosen = store_->compare_set(kCoordinatorKey, "", id_);
  if (chosen == id_) {
    if (std::exchange(coordinator_, chosen) == id_) return;
    const bool orders_before = store_->check({log_entry_key(kOrders, 1)});  // of one that has handed over
    part_ = orders_before ? Part::successor : Part::first;
    return;
  }
  const std::string key = sign_of_life_key(chosen);
  const std::string sign = store_->check({key}) ? store_->get(key, std::chrono::milliseconds(0)) : "";
  if (chosen != coordinator_ || sign != coordinators_sign_) {
    coordinator_ = chosen;
    coordinators_sign_ = sign;
    sign_since_ = Clock::now();
    return;
  }
  if (Clock::now() - sign_since_ < *electing_) return;
  if (store_->compare_set(kCoordinatorKey, chosen, id_) != id_) return;
  log(LogLevel::warn, "the host that coordinated this job is gone; this host coordinates now");
  coordinator_ = id_;
  part_ = Part::successor;
}

void Member::listen() {
  int64_t next = next_order_;
  while (!stop_) {
    try {
      store_->add(sign_of_life_key(id_), 1);
      if (electing_) elect();
      if (part_ != Part::none) wake();
      std::string text;
      try {
        text = store_->get(log_entry_key(kOrders, next), kSignEvery);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::timeout || !store_->check({log_size_key(kReports)})) throw;
        continue;
      }
      ++next;
      Order order = order_from_text(text);
      if (order.kind == Order::Kind::finish) stop_ = true;  // nothing follows
      const std::lock_guard lock(mutex_);
      orders_.push(std::move(order));
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      lost_ = error.what();
    }
    wake();
    if (!lost().empty()) return;
  }
}

}  // namespace muster
