// What an operation of a HostBackend gives its caller. Inside of host_backend.cc.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <mutex>
#include <vector>

namespace muster {

class ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, uint64_t sequence)
      : Work(rank, type), outputs_(std::move(outputs)), sequence_(sequence) {}

  void complete(int source, const std::exception_ptr& error) {
    source_ = source;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      const std::lock_guard lock(future_mutex_);
      future = future_;
      ended_ = true;
      error_ = error;
    }
    finish(error);
    if (future) settle(*future);
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::unique_lock lock(future_mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      if (ended_) {
        auto future = future_;
        lock.unlock();
        settle(*future);
        return future;
      }
    }
    return future_;
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  int sourceRank() const override { return source_; }
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void settle(c10::ivalue::Future& future) {
    if (error_) {
      future.setError(error_);
    } else {
      future.markCompleted(c10::IValue(outputs_));
    }
  }

  std::vector<at::Tensor> outputs_;
  uint64_t sequence_;
  int source_ = -1;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool ended_ = false;
  std::exception_ptr error_;
};

}  // namespace muster
