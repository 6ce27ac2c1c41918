// The launcher of this host serves a store, in which it announces each attempt (a generation, in
// the store's words) to every process. A thread of this rank waits for the next one. When it comes,
// the thread interrupts what the rank's groups wait for, so that the rank's function ends with an
// error; goes_on_after() tells that error from the rank's own, and meet() brings the rank into the
// attempt.
#include "muster/run/in_place.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/lost_ranks.h"
#include "muster/base/strings.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/capabilities.h"
#include "muster/comm/interrupt.h"
#include "muster/comm/rendezvous/interruptible_store.h"
#include "muster/comm/rendezvous/store_adapter.h"
#include "muster/run/error_file.h"
#include "muster/store/generations.h"
#include "muster/store/open_store.h"
#include "muster/supervise/stop_signals.h"
#include "muster/trace/activity.h"
#include "muster/trace/stack_request.h"

namespace muster {

namespace {

// A rank that has lost a peer waits this long for the next attempt. The launcher hears of the
// peer's end at once, but a large process takes its time to end.
constexpr std::chrono::seconds kAwaitAttempt{10};
constexpr std::chrono::seconds kAwaitOtherHost{30};   // a lost host has to be given up first
constexpr std::chrono::seconds kAwaitWhenStopped{2};  // the attempt is announced before the signal
constexpr milliseconds kLookForSignals{100};          // meanwhile, this often

constexpr std::chrono::seconds kTryToOpen{2};  // then a newer attempt may have another store
constexpr std::chrono::hours kListen{1};       // for the next attempt, and then once more

// Whether the end of another rank may explain the error. `interrupted`: this rank has itself broken
// off what its groups did, whose next call then fails with failed_precondition. LibTorch's own
// errors tell by their text, which translate_failures() reads.
bool may_be_of_lost_peer(const std::exception_ptr& error, bool interrupted) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    const ErrorCode code = own.code();
    if (code == ErrorCode::failed_precondition)
      return interrupted;
    return is_one_of(code, ErrorCode::peer_failed, ErrorCode::timeout, ErrorCode::backend_failed);
  } catch (...) {
  }
  try {
    translate_failures("run", [&] { std::rethrow_exception(error); });
  } catch (const Error& translated) {
    return is_one_of(translated.code(), ErrorCode::peer_failed, ErrorCode::timeout);
  } catch (...) {
  }
  return false;
}

}  // namespace

void require_interruptible(const ProcessGroup& group) {
  if (capabilities_of(group.backend()).can_be_interrupted)
    return;
  throw invalid_argument("--on-failure replace: expected ranks over shm, gloo or nccl, got ",
                         group.backend(),
                         " (rank ",
                         group.job_rank(),
                         "); it is not supported there yet: use --max-restarts alone");
}

// The store is that of this host's launcher, which outlives the ranks.
InPlace::InPlace(RankEnv env, const InitOptions& init)
    : env_(std::move(env)),
      init_(init),
      process_(process_name(env_.attempt, env_.rank)),
      newest_(env_.attempt) {
  if (env_.agent_store.empty()) {
    throw invalid_argument(
        "MUSTER_ON_FAILURE=replace: expected a rank of muster run, got one of another "
        "launcher; unset it");
  }
  store_ = open_job_store(env_.agent_store, init_.init_timeout);
  const BlockedSignals blocked;  // the new thread inherits the mask and keeps it
  listener_ = std::thread([this] { listen(); });
}

InPlace::~InPlace() {
  int awaited = 0;
  {
    const Lock lock(mutex_);
    ends_ = true;
    awaited = newest_ + 1;
  }
  try {
    stop_waiting_for_generation(*store_, process_, awaited);
  } catch (const std::exception&) {
    // The launcher has gone, and the listener has seen it.
  }
  listener_.join();
}

// The listening thread. It interrupts the groups before it tells the rank's thread, which makes the
// groups of the next attempt only after that.
void InPlace::listen() {
  try {
    for (int next = newest_ + 1;;) {
      const auto generation = wait_for_generation(*store_, process_, next, kListen);
      {
        const Lock lock(mutex_);
        if (ends_)
          return;
        if (!generation)
          continue;
        is_interrupting_ = true;
      }
      interrupt_groups();
      const Lock lock(mutex_);
      if (ends_)
        return;
      is_interrupting_ = false;
      newest_ = next++;
      variables_ = generation->variables;
      changed_.notify_all();
    }
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    if (!ends_)
      log_debug("no more generations: ", error.what());
  }
}

// Whoever reads the new attempt's activity finds all of its ranks in its folder.
void InPlace::link_activity_file() const {
  Activity* const activity = Activity::get();
  if (activity == nullptr)
    return;
  const std::filesystem::path there = activity_path(env_.run_dir, env_.attempt, env_.rank);
  std::error_code ignored;  // a report that lacks this rank is no reason to end the rank
  std::filesystem::create_directories(there.parent_path(), ignored);
  std::filesystem::create_hard_link(activity->path(), there, ignored);
  activity->become(env_.rank, env_.world_size, ignored ? "" : there.string());
  if (!ignored)
    answer_stack_requests_at(there.string());
}

// Brings this process into the newest attempt, as the rank that it is there.
void InPlace::come_to_newest() {
  const int before = env_.attempt;
  {
    const Lock lock(mutex_);
    env_ = with_generation(std::move(env_), variables_);
    env_.attempt = newest_;
  }
  come_to_generation(*store_, process_, env_.attempt);
  if (env_.attempt == before)
    return;
  set_log_name(cat("rank ", env_.rank));
  set_error_file(env_.error_file);
  forget_lost_ranks();
  link_activity_file();
}

// Throws: peer_failed if attempt `mine` is no longer the newest.
void InPlace::check_newest(int mine) const {
  const Lock lock(mutex_);
  if (newest_ == mine)
    return;
  throw Error(ErrorCode::peer_failed,
              "generation ",
              mine,
              ": expected its ranks to live, got generation ",
              newest_,
              " in place of it (rank ",
              env_.rank,
              ")");
}

// Each attempt has a connection of its own: interrupted operations may have lost those of the one
// before. It is retried, since the store's host may end meanwhile; a newer attempt then names
// another host.
SharedStore InPlace::open_rendezvous_store() const {
  for (const Deadline deadline(init_.init_timeout);;) {
    check_newest(env_.attempt);
    try {
      return open_job_store(env_.store, std::min<milliseconds>(kTryToOpen, deadline.left()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable || deadline.passed())
        throw;
    }
  }
}

Rendezvous InPlace::meet() {
  come_to_newest();
  track_groups(env_.attempt);
  auto store = adapt_store(open_rendezvous_store(), init_.init_timeout);
  return {.store = store_part(
              interruptible(std::move(store), [this, mine = env_.attempt] { check_newest(mine); }),
              cat("muster/", env_.attempt)),
          .rank = env_.rank,
          .world_size = env_.world_size,
          .master_addr = env_.master_addr};
}

// The launcher may announce the attempt only some time after the error, so the rank waits for it.
bool InPlace::goes_on_after(const std::exception_ptr& error) {
  UniqueLock lock(mutex_);
  const bool interrupted = is_interrupting_ || newest_ > env_.attempt;
  if (!may_be_of_lost_peer(error, interrupted))
    return false;
  const auto since = Clock::now();
  const auto patience = [&] {
    if (stop_signal() != 0)
      return kAwaitWhenStopped;
    return env_.group_world_size > 1 ? kAwaitOtherHost : kAwaitAttempt;
  };
  while (newest_ == env_.attempt && Clock::now() - since < patience())
    changed_.wait_for(lock, kLookForSignals);
  return newest_ > env_.attempt;
}

}  // namespace muster
