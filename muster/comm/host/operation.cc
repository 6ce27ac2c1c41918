// clang-format off
// The states of an operation, which two sides share: its caller (HostWork), and whoever runs it.
//
//   state      known_  told_  begins with                         wait()                              its tensors
//   under way  no      no     the start                           blocks                              are held
//   known      yes     no     end(): copies made, ended_ set      returns in the thread that ends it  are held
//   told       yes     yes    the future's callbacks have run     returns                             go with leave()
//
// Where the caller has left before (`left_`), end() lets the tensors go; never where the carrier still uses them.
// clang-format on
#include "muster/comm/host/operation.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>

#include <atomic>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/host/plain_tensor.h"

namespace muster {

namespace {

std::atomic<bool> g_shows_waits = false;

// Copies results to where the caller wants them, on the caller's stream. Nothing here is for
// autograd, as in the caller's thread. Returns the failure, if there is one.
std::exception_ptr make_copies(const HostCall& call) {
  try {
    const c10::OptionalStreamGuard stream(call.stream);
    const NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const HostCall::Copy& copy : call.copies)
      copy_plain(copy.to, copy.from);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

// The future is completed without the lock: what it calls may wait for this operation, in this
// thread (`known`) or another (`told`).
void HostOperation::end(Ended ended) {
  if (!ended.error && !call_.copies.empty())
    ended.error = make_copies(call_);
  if (call_.end_event)
    call_.end_event();
  call_.record.end(ended.error != nullptr);
  HostCall gone(call_.name, call_.type);  // its tensors go after the lock is left
  FuturePtr future;
  UniqueLock lock(mutex_);
  ended_ = std::move(ended);
  known_ = true;
  ended_in_ = std::this_thread::get_id();
  if (future_) {
    future = future_;
    lock.unlock();
    settle(*future);
    future.reset();
    lock.lock();
  }
  told_ = true;
  if (left_)
    let_go(gone, future);
  changed_.notify_all();
}

void HostOperation::leave() {
  FuturePtr future;
  HostCall gone(call_.name, call_.type);
  const Lock lock(mutex_);
  left_ = true;
  if (told_)
    let_go(gone, future);
}

// The caller of this has the lock, and what it is given goes when it has left it.
void HostOperation::let_go(HostCall& call, FuturePtr& future) {
  if (!ended_.memory_in_use)
    std::swap(call, call_);
  std::swap(future, future_);
}

std::optional<Ended> HostOperation::wait(milliseconds timeout) {
  UniqueLock lock(mutex_);
  const auto told = [this] {
    return told_ || (known_ && ended_in_ == std::this_thread::get_id());
  };
  if (timeout == kNoTimeout) {
    changed_.wait(lock, told);
  } else if (!changed_.wait_for(lock, timeout, told)) {
    return std::nullopt;
  }
  return ended_;
}

bool HostOperation::over() const {
  const Lock lock(mutex_);
  return known_;
}

Ended HostOperation::how() const {
  const Lock lock(mutex_);
  return ended_;
}

FuturePtr HostOperation::future() {
  UniqueLock lock(mutex_);
  if (future_)
    return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const FuturePtr future = future_;
  if (!known_)
    return future;
  lock.unlock();
  settle(*future);
  return future;
}

void HostOperation::settle(c10::ivalue::Future& future) const {
  if (ended_.error) {
    future.setError(ended_.error);
  } else {
    future.markCompleted(IValue(call_.outputs));
  }
}

void show_waits(bool shown) {
  g_shows_waits = shown;
}

WaitSpan::WaitSpan(const char* call, bool waits) {
  if (g_shows_waits && waits)
    span_.emplace(call, Category::communication);
}

bool HostWork::wait(milliseconds asked) {
  const auto timeout = countable(asked);
  const WaitSpan span(operation_->call().name, !operation_->over());
  const auto ended = operation_->wait(timeout);
  if (!ended) {
    throw Error(
        ErrorCode::timeout, operation_->call().name, ": Timed out waiting ", timeout.count(), "ms");
  }
  if (ended->error)
    std::rethrow_exception(ended->error);
  return true;
}

}  // namespace muster
