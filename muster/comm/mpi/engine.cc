// clang-format off
// The states of a call. All but the first are the engine's thread's own.
//
//   state      kept in                   then
//   posted     work_items_               taken off; where the group is broken, landed with what broke it
//   under way  flights_, with a group    ended or refused: landed; too late or failed: the whole group is landed
//   landed     flights_, without one     `done` has been called; swept, or lost where MPI may still use its memory
//   lost       lost_                     kept until the process ends, and MPI is not finalised
// clang-format on
#include "muster/comm/mpi/engine.h"

#include <cstdlib>
#include <future>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster::mpi {

namespace {

// MPI moves data only while it is called. So it is asked without pause while something is likely to
// end soon, then with short sleeps, and now and then when nothing is under way, because a peer may
// wait for what this rank has sent.
constexpr milliseconds kEager{20};  // since something was started or ended
constexpr std::chrono::microseconds kNap{50};
constexpr milliseconds kIdle{5};

// The longest wait at exit for a thread that may be stuck inside of MPI.
constexpr std::chrono::seconds kLastMoment{1};

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
    return "an unknown MPI";
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

// The exception that is being handled, as the failure of a call.
std::exception_ptr failure_of(const std::string& call) {
  try {
    throw;
  } catch (const Error& error) {
    return std::make_exception_ptr(Error(error.code(), call, ": ", error.message()));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(Error(ErrorCode::backend_failed, call, ": ", error.what()));
  }
}

// Whether only this call is wrong: MPI and the group are as good as before then.
bool is_refusal(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_argument;
  }
}

}  // namespace

// The engine is never destroyed: calls that were given up use its memory to the end.
Engine& Engine::of_process(milliseconds timeout) {
  static Engine& engine = *new Engine;
  [[maybe_unused]] static const int refused = std::atexit([] { engine.end_at_exit(); });
  engine.run_and_wait("MPI_Init_thread", timeout, [] { engine.get_ready(); });
  return engine;
}

Engine::Engine() {
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { run(); });
}

// Runs in the engine's thread, for each group that is made.
void Engine::get_ready() {
  int is_there = 0, is_over = 0;
  check(MPI_Initialized(&is_there), "MPI_Initialized");
  check(MPI_Finalized(&is_over), "MPI_Finalized");
  if (is_over != 0) {
    throw failed_precondition(
        "mpi: expected an MPI that can be used, got one that was finalised; make groups "
        "before that");
  }
  if (!reductions_)
    initialise(is_there != 0);
}

// MPI is initialised here unless the program has done so, which must then allow all threads.
void Engine::initialise(bool by_the_program) {
  int level = MPI_THREAD_SINGLE;
  if (by_the_program) {
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level < MPI_THREAD_MULTIPLE) {
      throw failed_precondition(
          "mpi: expected the program's own MPI_Init_thread to give MPI_THREAD_MULTIPLE, got level ",
          level,
          "; ask for it, or leave MPI to muster");
    }
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
    ours_ = true;
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  check(MPI_Comm_rank(MPI_COMM_WORLD, &world_.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world_.size), "MPI_Comm_size");
  constexpr int kHighestTagOfAll = 32767;  // which every MPI has
  int* tag = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&tag), &found),
        "MPI_Comm_get_attr");
  world_.highest_tag = found != 0 ? *tag : kHighestTagOfAll;
  world_.library = library_version();
  reductions_.emplace();
}

void Engine::end_at_exit() {
  UniqueLock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  const auto ended = [this] {
    return ended_;
  };
  if (may_finalise()) {
    changed_.wait(lock, ended);  // for the other ranks, as MPI_Finalize does
  } else {
    changed_.wait_for(lock, kLastMoment, ended);
  }
}

void Engine::closed(bool in_good_order) {
  if (!in_good_order)
    spoiled_ = true;
  --groups_;
}

void Engine::enqueue(Callback item) {
  {
    const Lock lock(mutex_);
    work_items_.push_back(std::move(item));
  }
  changed_.notify_one();
}

void Engine::run_and_wait(const char* what, milliseconds timeout, Callback body) {
  if (std::this_thread::get_id() == thread_.get_id())
    return body();
  const auto packaged = std::make_shared<std::packaged_task<void()>>(std::move(body));
  auto result = packaged->get_future();
  enqueue([packaged] { (*packaged)(); });
  if (result.wait_for(timeout) != std::future_status::ready) {
    spoiled_ = true;
    throw Error(ErrorCode::timeout,
                "mpi: expected ",
                what,
                " to end within ",
                timeout.count(),
                " ms, got no answer; see whether all ranks have called it");
  }
  result.get();
}

void Engine::post(Call call) {
  enqueue(
      [this, posted = std::make_shared<Call>(std::move(call))] { take_off(std::move(*posted)); });
}

void Engine::give_up(const std::shared_ptr<Group>& group, const std::exception_ptr& error) {
  spoiled_ = true;
  enqueue([this, group, error] { break_group(*group, error); });
}

void Engine::take_off(Call call) {
  const auto group = call.group;
  Airborne& airborne = flights_.emplace_back(Airborne{.call = std::move(call), .flight = {}});
  ++group->under_way;
  try {
    group->rethrow_if_broken();
    airborne.call.start(airborne.flight);
  } catch (...) {
    break_group(*group, failure_of(airborne.call.name));
  }
}

// Tells the caller how it ended. A flight without a group has landed.
void Engine::land(Airborne& airborne, const std::exception_ptr& error) {
  --std::exchange(airborne.call.group, nullptr)->under_way;
  airborne.call.done({.source = airborne.flight.source(),
                      .error = error,
                      .memory_in_use = !airborne.flight.idle()});
}

// Lets go of what has landed, unless MPI may still use its memory, which `done` holds.
void Engine::sweep() {
  for (auto at = flights_.begin(); at != flights_.end();) {
    const auto airborne = at++;
    if (airborne->call.group)
      continue;
    if (airborne->flight.idle()) {
      flights_.erase(airborne);
    } else {
      lost_.splice(lost_.end(), flights_, airborne);
    }
  }
}

// Lands all that the group has under way.
void Engine::break_group(Group& group, const std::exception_ptr& error) {
  spoiled_ = true;
  {
    const Lock lock(group.mutex);
    if (!group.broken)
      group.broken = error;
  }
  for (Airborne& airborne : flights_)
    if (airborne.call.group.get() == &group)
      land(airborne, error);
}

// True when the call has ended. A refused one ends alone; any other failure breaks its group.
bool Engine::poll_one(Airborne& airborne) {
  const Call& call = airborne.call;
  const auto group = call.group;
  try {
    if (airborne.flight.test()) {
      land(airborne, nullptr);
      return true;
    }
    if (!call.deadline.passed())
      return false;
    throw Error(ErrorCode::timeout,
                "expected its end within ",
                call.deadline.limit().count(),
                " ms, got none; see what the other ranks do, or give a longer timeout (MPI cannot "
                "end an operation: this group is over)");
  } catch (...) {
    const auto why = failure_of(call.name);
    if (is_refusal(why) && airborne.flight.idle()) {
      land(airborne, why);
    } else {
      break_group(*group, why);
    }
  }
  return true;
}

// Asks after all that is under way. True when something has ended.
bool Engine::poll() {
  bool moved = false;
  for (auto& airborne : flights_) {
    if (airborne.call.group)
      moved |= poll_one(airborne);
  }
  sweep();
  return moved;
}

// Any call does.
void Engine::let_mpi_progress() {
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
}

// Waits until there may be something to do. The caller holds the lock.
void Engine::pause(UniqueLock& lock) {
  const auto wanted = [this] {
    return stop_ || !work_items_.empty();
  };
  if (flights_.empty() && groups_ == 0)
    return changed_.wait(lock, wanted);
  if (flights_.empty()) {
    changed_.wait_for(lock, kIdle, wanted);
    return;
  }
  if (Clock::now() - moved_ > kEager) {
    changed_.wait_for(lock, kNap, wanted);
    return;
  }
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

// The thread runs what was enqueued, asks after what is under way, and pauses.
void Engine::run() {
  UniqueLock lock(mutex_);
  while (!stop_ || !work_items_.empty()) {
    if (work_items_.empty())
      pause(lock);
    std::deque<Callback> items = std::exchange(work_items_, {});
    lock.unlock();
    for (auto& item : items)
      item();
    if (!items.empty())
      moved_ = Clock::now();
    items.clear();  // what they hold goes before the lock is taken
    if (!flights_.empty()) {
      if (poll())
        moved_ = Clock::now();
    } else if (groups_ > 0 && reductions_) {
      let_mpi_progress();
    }
    lock.lock();
  }
  if (may_finalise() && ours_) {
    lock.unlock();
    MPI_Finalize();
    lock.lock();
  }
  ended_ = true;
  changed_.notify_all();
}

}  // namespace muster::mpi
