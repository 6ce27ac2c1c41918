// One host's side of a job of several: joins, tells what happens to its ranks, takes orders. One
// thread listens for orders and gives the signs of life, another sends what there is to tell: the
// agent's own thread never waits for the network while its ranks run. A store that does not answer
// is asked again and again, until the host has been silent for too long (silence.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/cluster/messages.h"
#include "muster/cluster/order_reader.h"
#include "muster/cluster/silence.h"
#include "muster/store/tcp_store.h"

namespace muster {

struct MemberOptions {
  Silence silence;
  // The hosts make one of them the coordinator, and another when that one is gone.
  bool elects = false;
};

class Member : NoCopy {
 public:
  // Joins. `store` is this host's own connection. Throws: as Store.
  Member(SharedStore store, const HostFacts& facts, const MemberOptions& options);
  ~Member();  // Blocking: until what was reported has been sent, or this host is lost.

  const std::string& id() const { return id_; }

  // Tells the coordinator, in the order of the calls; `from` and `number` are filled in. Does not
  // wait.
  void report(Report report);

  // Readable when there is an order to take or this host is lost.
  int fd() const { return ready_.get(); }

  // The next order, in sequence.
  std::optional<Order> take();

  // Gives the coordinator's part back, for another to take, when all that was reported has been
  // sent.
  void resign();

  // Whether this host is to coordinate: told once.
  enum class Part { none, first, successor };
  Part take_part();

  // Why this host can take no more part: the store is gone, or has not been reached for too long.
  // Empty while it can. To be asked again and again: that is what notices the silence.
  std::string lost();

 private:
  void begin();
  void end();
  void listen();
  void give_sign_of_life();
  void elect();
  void take_next_orders();
  bool take_order(const std::string& entry);
  void send_reports();
  bool sent(const Report& report);
  void reached(TimePoint asked);
  void failed(const std::exception& error);
  void lose(const std::string& why);
  void wake() const;

  const MemberOptions options_;
  const std::string id_;
  const SharedStore store_;
  TcpStore* const served_;  // the store, where a server has it; else nothing
  int next_number_ = 1;
  OrderReader log_;  // from the first order on that is for this host
  Fd ready_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // reports_, ends_, lost_
  std::queue<Order> orders_;
  std::deque<Report> reports_;  // to be sent; the first may be under way
  std::string lost_;
  TimePoint reached_;  // when the last sign of life that arrived was given
  std::optional<TimePoint> refused_since_;
  std::string last_error_;
  std::atomic<Part> part_{Part::none};
  std::string coordinator_;  // as last seen, with its sign of life
  std::string coordinators_sign_;
  TimePoint sign_since_;
  bool finished_ = false;  // the last order has come
  bool ends_ = false;      // this object does
  std::thread listener_;
  std::thread sender_;
};

}  // namespace muster
