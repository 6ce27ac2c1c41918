// Runs a Coordinator over a store: reads the reports as they come, watches the hosts' signs of
// life, gives the orders. In a thread of its own, in the process that serves the store (or that a
// store without a server has given the part to).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/log_history.h"
#include "muster/cluster/silence.h"
#include "muster/store/store.h"

namespace muster {

struct CoordinatorThreadOptions {
  Silence silence{std::chrono::seconds(15)};  // of a host that is gone then
  bool take_over = false;  // there was another coordinator: read what it did first
  // How long entries of the logs stay that nobody needs; nothing: as long as a host may be silent.
  std::optional<milliseconds> keeps_history{};
  bool notes_joins = false;  // for has_joined()
  // Since 1970; for tests. It may jump.
  std::function<milliseconds()> time_of_day{};
};

class CoordinatorThread : NoCopy {
 public:
  CoordinatorThread(SharedStore store,
                    CoordinatorRules rules,
                    Coordinator::Planner planner,
                    CoordinatorThreadOptions options = {});
  ~CoordinatorThread();  // ends it

  // Waits until the job is over and every host has taken leave: true; or `patience` is.
  bool wait(milliseconds patience);

  // It has ended without ending the job, and nobody has taken its place.
  bool broken() const { return broken_; }

  // The order to finish, when it has been given.
  std::optional<Order> result() const;

  // Whether a host of this name has ever joined, where the options say so.
  bool has_joined(const std::string& host) const;

  // As Coordinator::remembered(), with the signs of life.
  size_t remembered() const { return remembered_; }

 private:
  void run();
  void serve();
  Orders next_orders();
  bool is_stop_reported() const;
  void give_up(const std::string& why);
  void take_over();
  milliseconds time_of_day() const;
  void tell_age();
  milliseconds age_of_job() const;
  void give(const Orders& orders);
  void watch_signs_of_life(Orders& orders);
  void forget_history();
  void tell_kept_entries();

  struct SignOfLife {
    std::string value;
    TimePoint since;
  };

  SharedStore store_;
  CoordinatorThreadOptions options_;
  Coordinator coordinator_;
  int64_t next_order_ = 1;
  int64_t next_report_ = 1;
  LogHistory history_;
  std::map<std::string, SignOfLife> signs_;
  TimePoint next_watch_;
  TimePoint began_ = Clock::now();  // the job
  mutable std::mutex mutex_;
  std::optional<Order> result_;
  StringSet joined_;  // the hosts' names
  std::atomic<size_t> remembered_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> done_{false};
  std::atomic<bool> all_left_{false};
  std::atomic<bool> broken_{false};
  std::thread thread_;
};

}  // namespace muster
