// One host's side of a job of several: joins, tells what happens to its ranks, takes orders. A thread listens
// for orders and gives the signs of life; the agent's own thread never waits for the network while its ranks
// run.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/cluster/messages.h"
#include "muster/store/store.h"

namespace muster {

class Member {
 public:
  // Joins. `store` is this host's own connection. With `electing`, the hosts make one of them the
  // coordinator, and another when it has given no sign of life for that long. Throws: as Store.
  Member(std::shared_ptr<Store> store, const HostFacts& facts,
         std::optional<std::chrono::milliseconds> electing = {});
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member();

  const std::string& id() const { return id_; }

  // Tells the coordinator; `from` and `number` are filled in. What cannot be told because the store is gone
  // is found out by the listening thread too. Blocking: for the store's answer.
  void report(Report report);

  // Readable when there is an order to take or the store is lost.
  int fd() const { return ready_.get(); }

  // The next order, in sequence.
  std::optional<Order> take();

  // Gives the coordinator's part back, for another to take.
  void resign();

  // Whether this host is to coordinate: told once.
  enum class Part { none, first, successor };
  Part take_part();

  // Why there will be no more orders; empty while there will.
  std::string lost() const;

 private:
  void listen();
  void elect();
  void wake() const;

  std::string id_;
  std::shared_ptr<Store> store_;
  int next_number_ = 1;
  int64_t next_order_ = 1;  // the first that is for this host
  Fd ready_;
  mutable std::mutex mutex_;
  std::queue<Order> orders_;
  std::string lost_;
  std::atomic<Part> part_{Part::none};
  std::optional<std::chrono::milliseconds> electing_;
  std::string coordinator_;  // as last seen, with its sign of life
  std::string coordinators_sign_;
  Clock::time_point sign_since_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace muster
