// A HostCall that is under way has two sides, which share a HostOperation: whoever runs it ends it,
// and its caller waits for it through a HostWork. For backend.cc and comm/hierarchical.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/host/call.h"
#include "muster/comm/host/carrier.h"
#include "muster/trace/span.h"

namespace muster {

// The caller's thread lets go of the tensors, not the one that has ended the call: to let go of a
// tensor that Python has too needs the interpreter, which is no longer there for another thread
// once the caller, told of the end, has ended the program.
class HostOperation : NoCopy {
 public:
  explicit HostOperation(HostCall call) : call_(std::move(call)) {}
  ~HostOperation() { call_.record.end(/*failed=*/true); }  // a call that never began

  const HostCall& call() const { return call_; }  // until the caller has left

  // Copies what has to be copied, and tells the caller. Once, in any thread.
  void end(Ended ended);

  // Returns how it ended, or nothing where the time ran out. kNoTimeout never runs out.
  std::optional<Ended> wait(milliseconds timeout);
  bool over() const;
  Ended how() const;  // once it is over
  FuturePtr future();

  void leave();  // by the caller, who asks nothing more

 private:
  void settle(c10::ivalue::Future& future) const;
  void let_go(HostCall& call, FuturePtr& future);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  HostCall call_;
  FuturePtr future_;    // where one was asked for
  bool known_ = false;  // how it ended
  std::thread::id ended_in_;
  bool told_ = false;  // to who waits: after the future, and what that calls, which may wait too
  bool left_ = false;
  Ended ended_;
};

// Whether what a caller waits for is a span: in programs that call backends past ProcessGroup,
// which has such spans.
void show_waits(bool shown);

// Such a span, to the end of the scope; none where `waits` is false.
class WaitSpan {
 public:
  WaitSpan(const char* call, bool waits);

 private:
  std::optional<Span> span_;
};

class HostWork : public c10d::Work {
 public:
  HostWork(int rank, uint64_t sequence, std::shared_ptr<HostOperation> operation)
      : Work(rank, operation->call().type), sequence_(sequence), operation_(std::move(operation)) {}
  ~HostWork() override { operation_->leave(); }

  bool isCompleted() override { return operation_->over(); }
  bool isSuccess() const override { return operation_->over() && !operation_->how().error; }
  std::exception_ptr exception() const override { return operation_->how().error; }
  bool wait(milliseconds timeout = kNoTimeout) override;

  FuturePtr getFuture() override { return operation_->future(); }
  Tensors result() override { return operation_->call().outputs; }
  int sourceRank() const override { return operation_->how().source; }
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  const uint64_t sequence_;
  const std::shared_ptr<HostOperation> operation_;
};

}  // namespace muster
