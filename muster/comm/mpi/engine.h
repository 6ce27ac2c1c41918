// One thread makes all of this process's calls of MPI: it initialises MPI, starts calls in the
// order in which they are posted, asks after those under way, and finalises. A process has one
// engine, because it has one MPI.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/lock.h"
#include "muster/comm/host/carrier.h"
#include "muster/comm/mpi/start.h"

namespace muster::mpi {

// A group as the engine knows it.
struct Group {
  Communicators communicators;
  std::mutex mutex;
  std::exception_ptr broken;  // by what; nothing is started any more
  int under_way = 0;          // flights; the engine's thread alone

  void rethrow_if_broken() {
    const Lock lock(mutex);
    if (broken)
      std::rethrow_exception(broken);
  }
};

class Engine {
 public:
  struct Call {
    std::string name;  // "all_reduce #12 on rank 1 of 4"
    std::shared_ptr<Group> group;
    Deadline deadline;
    std::function<void(Flight&)> start;
    Carrier::Done done;
  };
  struct World {
    int rank = 0;
    int size = 1;
    int highest_tag = 0;
    std::string library;  // "Open MPI v4.1.4"
  };

  // The engine and MPI start when this is first asked for. Throws: failed_precondition when the
  // program's own MPI cannot be used; timeout; backend_failed.
  static Engine& of_process(milliseconds timeout);

  const World& world() const { return world_; }
  const Reductions& reductions() const { return *reductions_; }

  // Runs `body` in the thread. Blocking: until it has run. Throws: what it throws; timeout.
  void run_and_wait(const char* what, milliseconds timeout, Callback body);

  void post(Call call);

  // Ends what the group has under way with `error`, which all later calls get too.
  void give_up(const std::shared_ptr<Group>& group, const std::exception_ptr& error);

  // Groups are counted: MPI is asked to go on as long as there is one. A group that was not left in
  // good order keeps MPI from being finalised, which would wait for ranks that may have failed.
  void opened() { ++groups_; }
  void closed(bool in_good_order);

 private:
  struct Airborne {
    Call call;
    Flight flight;
  };

  Engine();
  void end_at_exit();

  void run();
  void get_ready();
  void initialise(bool by_the_program);
  bool may_finalise() const { return !spoiled_ && groups_ == 0; }
  bool poll();
  bool poll_one(Airborne& airborne);
  void sweep();
  void take_off(Call call);
  void land(Airborne& airborne, const std::exception_ptr& error);
  void break_group(Group& group, const std::exception_ptr& error);
  void enqueue(Callback item);
  void let_mpi_progress();
  void pause(UniqueLock& lock);

  World world_;
  std::optional<Reductions> reductions_;
  bool ours_ = false;  // to finalise

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Callback> work_items_;
  bool stop_ = false;
  bool ended_ = false;
  std::atomic<int> groups_ = 0;
  std::atomic<bool> spoiled_ = false;

  // The thread's own.
  std::list<Airborne> flights_;
  std::list<Airborne> lost_;  // MPI may still use their memory: kept until the process ends
  Clock::time_point moved_ = Clock::now();  // when something was started or ended last
  std::thread thread_;
};

}  // namespace muster::mpi
