#include "muster/comm/shm/queue.h"

#include <memory>
#include <utility>

#include "muster/base/error.h"

namespace muster {

namespace {

// What a caller that goes on waits itself for the others, at most, before the queue's thread does.
// Waking that costs more.
constexpr std::chrono::microseconds kPatience{20};
constexpr std::chrono::microseconds kPatienceWhenCrowded{
    100};  // the others first need this processor
// At each step, before it sleeps: who has nothing else to do; and the queue's thread, beside which
// the caller may be computing on the same processor.
constexpr std::chrono::microseconds kCallersPatience{1'000};
constexpr std::chrono::microseconds kQueuesPatience{50};

}  // namespace

ShmQueue::ShmQueue(shm::Team& team)
    : team_(team), collectives_(team), executor_([this] { team_.give_up(); }) {}

void ShmQueue::submit(Carrier::Operation operation) {
  const auto timeout = operation.timeout;
  const auto queued = std::make_shared<Queued>(
      Queued{.operation = std::move(operation), .deadline = Deadline(timeout)});
  const OrderedExecutor::Operation later = [this, queued](const std::exception_ptr& broken) {
    execute(*queued, broken);
  };
  const bool here = executor_.run_here([&]() -> OrderedExecutor::Operation {
    bool at_once = false;
    try {
      collectives_.begin(queued->operation.requests.at(0));
      queued->begun = true;
      at_once = ends_at_once(*queued);
    } catch (...) {
      break_unless_refused();
      throw;
    }
    if (!at_once)
      return later;
    later(nullptr);
    return nullptr;
  });
  if (!here)
    executor_.submit(later);
}

bool ShmQueue::run(const shm::Request& request, std::chrono::milliseconds timeout) {
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

bool ShmQueue::ends_at_once(const Queued& queued) const {
  if (!queued.operation.asynchronous)
    return true;
  if (queued.operation.requests.size() > 1 || !collectives_.is_small(queued.operation.requests[0]))
    return false;
  // The caller has something to compute, which must not wait for whoever else wants this processor.
  const bool crowded = team_.crowded();
  return team_.all_there(crowded ? kPatienceWhenCrowded : kPatience, /*gives_way=*/crowded);
}

void ShmQueue::execute(Queued& queued, const std::exception_ptr& broken) {
  std::exception_ptr error = queued.begun ? nullptr : broken;
  try {
    team_.set_patience(queued.operation.asynchronous ? kQueuesPatience : kCallersPatience);
    for (const shm::Request& request : queued.operation.requests) {
      if (error)
        break;
      if (!std::exchange(queued.begun, false))
        collectives_.begin(request);
      collectives_.finish(request, queued.deadline);
    }
  } catch (...) {
    error = std::current_exception();
    break_unless_refused();
  }
  queued.operation.done({.error = error});
}

// A wrong call leaves the team as good as it was. After anything else, memory that could not be had
// too, this rank may have taken fewer steps than the others: whatever came next would be paired
// with something else.
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
