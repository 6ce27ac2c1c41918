// A group ends in good order (shutdown), after a failure (abandon), or with its last copy. In good
// order the ranks meet in a barrier, and count their departures in the store: nobody closes a
// connection that another still reads from, and the store's server ends last.

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/group_state.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/process_group.h"
#include "muster/comm/process_group_call.h"

namespace muster {

namespace {

// A rank that dies between the barrier and its departure is waited for no longer.
constexpr std::chrono::seconds kDepartureTime{8};

// What is kept of a group until the process ends: its backends, and the threads that watch them.
struct LeftBehind {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::unique_ptr<LateWatch> late_watch;
  std::shared_ptr<GpuEnds> gpu_ends;
};

void leave_behind(LeftBehind group) {
  static std::mutex mutex;
  static auto& left = *new std::vector<LeftBehind>;  // never destroyed
  const Lock lock(mutex);
  left.push_back(std::move(group));
}

void translate_shutdown(const ProcessGroup::State& state, const Callback& body) {
  translate_failures(cat("shutdown on rank ", state.name()), body);
}

void depart(ProcessGroup::State& state) {
  state.departures->add(kDepartures, 1);
}

// Nobody may close connections while another is still inside the barrier's last message.
void await_departures(ProcessGroup::State& state) {
  const Deadline deadline(kDepartureTime);
  const int64_t all = (state.generation + 1) * state.size;
  try {
    while (!deadline.passed() && state.departures->add(kDepartures, 0) < all)
      std::this_thread::sleep_for(milliseconds(1));
  } catch (const std::exception&) {
    // The rank that serves the store has seen everybody and gone.
  }
}

}  // namespace

// A group that ends without shutdown() is left behind in two cases. Its backend's destructor waits
// for operations, and one that was given up may not end before its deadline, half an hour away.
// NCCL's destructor aborts operations instead, and the GPU may not even have begun those that the
// host has waited for. A forked child has none of the threads that would be waited for.
// Where an exception of the program ends the group, other ranks may wait for this one's next call.
ProcessGroup::State::~State() {
  const bool is_failing = std::uncaught_exceptions() > 0 && !*abandoned;
  if (agreement && is_failing && !fork.in_child())
    agreement->give_up(sequence, kThrown);
  if (fork.in_child()) {
    (void)group.release();
    (void)late_watch.release();
    new (std::nothrow) std::shared_ptr<GpuEnds>(std::move(gpu_ends));
  } else if (group && (*abandoned || can.on_gpus)) {
    leave_behind({.group = std::move(group),
                  .late_watch = std::move(late_watch),
                  .gpu_ends = std::move(gpu_ends)});
  }
}

void ProcessGroup::wait_for_gpu() {
  if (!state_->can.on_gpus)
    return;
  wait_for_device(device());
  state_->expect_not_interrupted("wait_for_gpu");
}

void ProcessGroup::abandon() {
  if (state_->fork.in_child())
    return;
  *state_->abandoned = true;
  if (!state_->options.awaited)
    return;
  try {
    state_->departures->add(kAbandoned, 1);
  } catch (const std::exception&) {
    // Whoever serves the store has gone: nobody waits.
  }
}

void ProcessGroup::shutdown() {
  state_->fork.check(kLeaving);
  if (state_->gate.closed())
    return;
  if (state_->can.leaves_without_store) {
    // Nobody uses the store after the barrier, so that whoever serves it may end then.
    translate_shutdown(*state_, [this] {
      depart(*state_);
      state_->blocking->leave_and_wait();
    });
    close();
    return;
  }
  {
    ProcessGroupCall call(kLeaving, state_.get());
    call.without_tensors();
    call.start_barrier(Caller::waits).wait();
  }
  translate_shutdown(*state_, [this] { depart(*state_); });
  await_departures(*state_);
  close();
}

// Calls of other threads that have begun end first: they use the group.
void ProcessGroup::close() {
  if (!state_->gate.close())
    return;
  state_->gate.wait_until_empty();
  state_->late_watch.reset();
  state_->gpu_ends.reset();
  state_->agreement.reset();
  const auto shut_down = [this] {
    state_->group->shutdown();
  };
  translate_shutdown(*state_, [&] {
    if (state_->is_in_graph)
      end_communicator(shut_down);
    else
      shut_down();
  });
  state_->group.reset();
}

}  // namespace muster
