#include "muster/run/in_place.h"

#include <unistd.h>

#include <filesystem>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/comm/failure.h"
#include "muster/comm/interrupt.h"
#include "muster/comm/interruptible_store.h"
#include "muster/comm/store_adapter.h"
#include "muster/run/stop_signals.h"
#include "muster/store/generations.h"
#include "muster/store/open_store.h"
#include "muster/store/secret.h"
#include "muster/trace/activity.h"

namespace muster {

namespace {

// Between a peer's end and the launcher's word of it: the launcher hears of it at once, but a large process
// takes its time to end.
constexpr std::chrono::seconds kAwaitGeneration{10};
constexpr std::chrono::milliseconds kLookForSignals{100};
constexpr std::chrono::hours kListen{1};

std::shared_ptr<Store> open_job_store(const RankEnv& env, std::chrono::milliseconds timeout) {
  return open_store(env.store, Secret::from_environment().value_or(Secret()), timeout);
}

// Whether the death of another rank explains it. LibTorch's own errors tell by their text. `interrupted`:
// this rank has itself broken off what its groups did.
bool may_be_of_lost_peer(const std::exception_ptr& error, bool interrupted) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    const ErrorCode code = own.code();
    return code == ErrorCode::peer_failed || code == ErrorCode::timeout ||
           code == ErrorCode::backend_failed || (interrupted && code == ErrorCode::failed_precondition);
  } catch (...) {
  }
  try {
    translate_failures("run", [&] { std::rethrow_exception(error); });
  } catch (const Error& translated) {
    return translated.code() == ErrorCode::peer_failed || translated.code() == ErrorCode::timeout;
  } catch (...) {
  }
  return false;
}

}  // namespace

std::string what_on_failure() {
  const std::string what = get_env("MUSTER_ON_FAILURE").value_or("end");
  if (what != "end" && what != "continue" && what != "replace")
    throw Error(ErrorCode::invalid_argument,
                cat("MUSTER_ON_FAILURE: expected end, continue or replace, got '", what, "'; correct it"));
  return what;
}

void require_interruptible(const ProcessGroup& group) {
  if (group.backend() == "shm" || group.backend() == "gloo") return;
  throw Error(ErrorCode::invalid_argument,
              cat("--on-failure replace: expected ranks over shm or gloo, got ", group.backend(), " (rank ",
                  group.job_rank(), "); it is not supported there yet: use --max-restarts alone"));
}

InPlace::InPlace(RankEnv env, const InitOptions& init)
    : env_(std::move(env)), init_(init), generation_(env_.attempt), newest_(env_.attempt) {
  if (env_.store.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "MUSTER_ON_FAILURE=replace: expected a rank of muster run, got one of another launcher; unset "
        "it");
  }
  store_ = open_job_store(env_, init_.init_timeout);
  const BlockedSignals blocked;  // in the thread, for good
  listener_ = std::thread([this] { listen(); });
}

InPlace::~InPlace() {
  int awaited = 0;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    awaited = newest_ + 1;
  }
  try {
    stop_waiting_for_generation(*store_, awaited, env_.rank);
  } catch (const std::exception&) {
    // The launcher has gone, and the listener has seen it.
  }
  listener_.join();
}

// The groups are interrupted before anybody is told: those of the next generation are made after that.
void InPlace::listen() {
  try {
    for (int next = generation_ + 1;;) {
      const auto why = wait_for_generation(*store_, next, env_.rank, kListen);
      {
        const std::lock_guard lock(mutex_);
        if (ends_) return;
        if (!why) continue;
        is_interrupting_ = true;
      }
      interrupt_groups();
      const std::lock_guard lock(mutex_);
      if (ends_) return;
      is_interrupting_ = false;
      newest_ = next++;
      changed_.notify_all();
    }
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    if (!ends_) log(LogLevel::debug, cat("no more generations: ", error.what()));
  }
}

// Whoever reads a generation's activity finds all of its ranks there.
void InPlace::show_activity_there() const {
  const Activity* const activity = Activity::get();
  if (activity == nullptr) return;
  const std::filesystem::path there = activity_path(env_.run_dir, generation_, env_.rank);
  std::error_code ignored;  // a report without this rank is no reason to end
  std::filesystem::create_directories(there.parent_path(), ignored);
  std::filesystem::create_hard_link(activity->path(), there, ignored);
}

Rendezvous InPlace::meet() {
  {
    const std::lock_guard lock(mutex_);
    generation_ = newest_;
  }
  come_to_generation(*store_, generation_, env_.rank);
  if (generation_ != env_.attempt) show_activity_there();
  track_groups(generation_);
  const auto check = [this, mine = generation_] {
    const std::lock_guard lock(mutex_);
    if (newest_ > mine) {
      throw Error(ErrorCode::peer_failed,
                  cat("generation ", mine, ": expected its ranks to live, got generation ", newest_,
                      " in place of it (rank ", env_.rank, ")"));
    }
  };
  // A store of its own: what is interrupted may have lost the connections of the one before.
  auto store = adapt_store(open_job_store(env_, init_.init_timeout), init_.init_timeout);
  return {.store = c10::make_intrusive<c10d::PrefixStore>(cat("muster/", generation_),
                                                          interruptible(std::move(store), check)),
          .rank = env_.rank,
          .world_size = env_.world_size,
          .master_addr = env_.master_addr};
}

bool InPlace::goes_on_after(const std::exception_ptr& error) {
  bool interrupted = false;
  {
    const std::lock_guard lock(mutex_);
    interrupted = is_interrupting_ || newest_ > generation_;
  }
  if (!may_be_of_lost_peer(error, interrupted)) return false;
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + kAwaitGeneration;
  while (newest_ == generation_ && stop_signal() == 0 && std::chrono::steady_clock::now() < until)
    changed_.wait_for(lock, kLookForSignals);
  return newest_ > generation_;
}

}  // namespace muster
