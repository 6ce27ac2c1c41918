// The queue begins a call in the caller's thread whenever it can: the other ranks wait for this
// one's arrival and not for its result.
#include "muster/comm/shm/queue.h"

#include <memory>
#include <utility>

#include "muster/base/error.h"

namespace muster {

namespace {

// A caller that goes on waits itself for the others, at most so long, before the queue's thread
// does: waking that costs more. Where ranks are crowded the others first need this processor.
constexpr std::chrono::microseconds kPatience{20};
constexpr std::chrono::microseconds kPatienceWhenCrowded{100};

// A rank looks so long at each step before it sleeps. A caller that only waits has nothing else to
// do; beside the queue's thread the caller may be computing on the same processor.
constexpr std::chrono::microseconds kCallersPatience{1'000};
constexpr std::chrono::microseconds kQueuesPatience{50};

}  // namespace

ShmQueue::ShmQueue(shm::Team& team)
    : team_(team), collectives_(team), executor_([this] { team_.give_up(); }) {}

// Begins the call here where nothing else is under way, so that the other ranks can go on, and ends
// it here too where that takes no time. Else it waits for its turn in the queue's thread.
void ShmQueue::submit(Carrier::Call given) {
  const auto call = std::make_shared<const Carrier::Call>(std::move(given));
  const auto turn = [this, call](bool begun) -> OrderedExecutor::Turn {
    return [this, call, begun](const std::exception_ptr& broken) {
      execute(*call, begun, broken);
    };
  };
  const bool here = executor_.run_here([&]() -> OrderedExecutor::Turn {
    bool at_once = false;
    try {
      collectives_.begin(call->requests.at(0));
      at_once = ends_at_once(*call);
    } catch (...) {
      break_unless_refused();
      throw;
    }
    if (!at_once)
      return turn(/*begun=*/true);
    execute(*call, /*begun=*/true, nullptr);
    return nullptr;
  });
  if (!here)
    executor_.submit(turn(/*begun=*/false));
}

bool ShmQueue::run(const Request& request, milliseconds timeout) {
  return executor_.run_here([&] {
    try {
      team_.set_patience(kCallersPatience);
      collectives_.begin(request);
      collectives_.finish(request, Deadline(timeout));
    } catch (...) {
      break_unless_refused();
      throw;
    }
    return nullptr;
  });
}

// Whether this thread may end the call that it has begun: its caller only waits, or it is small and
// the others come soon. A caller that goes on has something to compute, which must not wait for
// whoever else wants this processor.
bool ShmQueue::ends_at_once(const Carrier::Call& call) const {
  if (!call.asynchronous)
    return true;
  if (call.requests.size() > 1 || !collectives_.is_small(call.requests[0]))
    return false;
  const bool crowded = team_.crowded();
  return team_.all_there(crowded ? kPatienceWhenCrowded : kPatience, /*gives_way=*/crowded);
}

// Runs all of a call. `begun`: its first request, which then counts although the group is broken
// since.
void ShmQueue::execute(const Carrier::Call& call, bool begun, const std::exception_ptr& broken) {
  std::exception_ptr error = begun ? nullptr : broken;
  try {
    team_.set_patience(call.asynchronous ? kQueuesPatience : kCallersPatience);
    for (const Request& request : call.requests) {
      if (error)
        break;
      if (!std::exchange(begun, false))
        collectives_.begin(request);
      collectives_.finish(request, call.deadline);
    }
  } catch (...) {
    error = std::current_exception();
    break_unless_refused();
  }
  call.done({.error = error});
}

// A wrong call leaves the team as good as it was. After any other failure, also where memory could
// not be had, this rank may have taken fewer steps than the others: whatever came next would be
// paired with something else.
void ShmQueue::break_unless_refused() {
  try {
    throw;
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::invalid_argument)
      return;
  } catch (...) {
  }
  team_.give_up();
  executor_.break_group(std::current_exception());
}

}  // namespace muster
