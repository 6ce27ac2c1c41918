// A backend that has the time limit itself is simply waited for. Gloo is waited for in slices, and
// between them this rank looks at what the others are doing: a collective that they do not come to
// is named here, which Gloo's own error would not do. NCCL's works are asked instead, since their
// wait() does not block the host.
#include "muster/comm/work.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/bounded_wait.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/host/plain_tensor.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/work_state.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// An operation unanswered for this long is compared with what the other ranks are doing.
constexpr std::chrono::seconds kUnanswered{1};

// A GPU's operation is asked for so often, at first and later.
constexpr std::chrono::microseconds kAskSoon{20};
constexpr std::chrono::microseconds kAskLater{500};

// An operation that is given up is waited for so long until it is aborted.
constexpr std::chrono::seconds kAwaitAbort{5};

[[noreturn]] void fail_for_time(const Work::State& state) {
  throw Error(ErrorCode::timeout,
              state.name(),
              ": Timed out waiting ",
              state.deadline.limit().count(),
              "ms; ",
              state.why_late(),
              "; see what they do, or give a longer timeout");
}

// One bounded wait for a GPU's operation; false when it ran out. The host is kept from going on,
// and the current stream waits too. Throws: the operation's failure.
bool wait_for_gpu(c10d::Work& work, milliseconds time) {
  const Deadline slice(time);
  for (auto pause = kAskSoon; !work.isCompleted(); pause = std::min(2 * pause, kAskLater)) {
    if (slice.passed())
      return false;
    std::this_thread::sleep_for(pause);
  }
  work.wait();
  return true;
}

bool wait_for_slice(Work::State& state, milliseconds time) {
  return state.on_gpu ? wait_for_gpu(*state.work, time) : wait_for(*state.work, time);
}

void wait_on_host(Work::State& state) {
  const Deadline& deadline = state.deadline;
  const milliseconds limit = deadline.limit();
  // A short deadline has looks before it too, so that who is missing is known when it passes.
  const auto unanswered = std::min<milliseconds>(kUnanswered, limit / 4);
  LateRanks late_ranks(limit);
  for (;;) {
    const auto left = std::min(unanswered, deadline.left());
    if (wait_for_slice(state, std::max(left, milliseconds(1))))
      return;
    if (state.agreement) {
      state.agreement->look_again(state.sequence, state.signature);
      if (!deadline.passed() && late_ranks.due())
        state.agreement->tell_of_late(state.sequence, state.signature, late_ranks);
    }
    if (deadline.passed())
      fail_for_time(state);
  }
}

// NCCL's operation would keep the GPU for ever. Aborting it may fail as the operation has. It may
// also wait for what hangs in another communicator: then it goes on beside.
void abort_on_gpu(const WorkPtr& work) {
  const auto over = std::make_shared<std::promise<void>>();
  const auto abort = [work, over] {
    try {
      end_communicator([&] { work->abort(); });
    } catch (const std::exception& error) {
      log_debug("an operation of a GPU was not aborted: ", error.what());
    }
    over->set_value();
  };
  {
    const BlockedSignals blocked;  // in the thread, for good
    std::thread(abort).detach();
  }
  if (over->get_future().wait_for(kAwaitAbort) != std::future_status::ready)
    log_warning(
        "an operation of a GPU is not aborted yet: another one hangs there, in another group");
}

// An operation that is still under way after a failure spoils the group for later calls.
void wait_or_give_up(Work::State& state) {
  try {
    wait_on_host(state);
  } catch (...) {
    if (!state.work->isCompleted()) {
      *state.abandoned = true;
      if (state.on_gpu)
        abort_on_gpu(state.work);
    }
    throw;
  }
}

// NCCL's work keeps the call's tensors until it is waited for. Those that were made for the call,
// as of an input that is not contiguous, then go back to the stream where they were made: that one
// waits too. A call that has made none leaves its own stream free, as LibTorch does.
void wait_where_it_started(Work::State& state) {
  if (!state.started_on || state.started_on == current_stream_of(state.started_on->device()))
    return;
  const c10::StreamGuard there(*state.started_on);
  state.work->wait();
}

// A call may have no work to wait for.
void wait_as_it_can(Work::State& state) {
  if (!state.work)
    return;
  switch (state.waiting) {
    case Work::State::Waiting::by_itself:
      state.work->wait();
      break;
    case Work::State::Waiting::once:
      state.work->wait(state.deadline.limit());
      break;
    case Work::State::Waiting::in_slices:
      wait_or_give_up(state);
      break;
  }
  wait_where_it_started(state);
}

}  // namespace

bool Work::done() const {
  return !state_ || !state_->work || state_->work->isCompleted();
}

void Work::wait() {
  if (!state_)
    return;
  // A second wait does nothing.
  const auto group = std::exchange(group_, nullptr);
  const auto state = std::exchange(state_, nullptr);
  state->fork.check(state->operation);
  state->waited = true;
  const Span span(state->operation, Category::communication);
  try {
    wait_as_it_can(*state);
    if (state->gpu_ends)
      state->gpu_ends->end_after_stream(std::move(state->record));
    else
      state->record.end(/*failed=*/false);
    if (state->copies.empty())
      return;
    std::call_once(state->copied_back, [&] {
      const NoGradGuard no_grad;
      for (const auto& copy : state->copies) {
        use_on_this_stream({copy.contiguous});
        copy_plain(copy.original, copy.contiguous);
      }
    });
  } catch (...) {
    state->record.end(/*failed=*/true);
    rethrow_translated(state->name());
  }
}

// Messages are named by their peer and tag, collectives by their number.
std::string Work::State::name() const {
  const std::string whose = " on " + names->whose(rank);
  if (peer >= 0)
    return cat(operation, " (peer ", (*names)[peer], ", tag ", tag, ")", whose);
  if (sequence < 0)
    return cat(operation, whose);
  return cat(operation, " #", sequence, whose);
}

// A message has no agreement, but only one rank to wait for. Of a call that the ranks do not
// compare they only say that they wait.
std::string Work::State::why_late() const {
  if (peer >= 0)
    return cat("rank ", (*names)[peer], " has not come to it");
  if (agreement && signature.empty()) {
    const auto elsewhere = agreement->not_waiting();
    return elsewhere.empty() ? "all ranks wait: a GPU or the network hangs"
                             : cat("missing rank(s) ", join((*names)(elsewhere), ", "));
  }
  const auto missing = agreement ? agreement->absent(sequence) : Ints{};
  if (missing.empty())
    return "all ranks are in it: a slow or broken network";
  return cat("missing rank(s) ", join((*names)(missing), ", "));
}

}  // namespace muster
