// How an operation of fake_nccl.h is started, and the work that its caller gets.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/call/record.h"
#include "tests/cuda/fake_communicator.h"
#include "tests/cuda/fake_graph.h"
#include "tests/cuda/fake_memory.h"
#include "tests/cuda/fake_streams.h"

namespace muster::testing {

// As WorkNCCL: with a limit the host waits too, and after a barrier.
class NcclWork : public c10d::Work {
 public:
  NcclWork(std::shared_ptr<Communicator> communicator,
           std::shared_ptr<Collective> collective,
           std::vector<at::Tensor> results,
           bool is_barrier)
      : communicator_(std::move(communicator)),
        collective_(std::move(collective)),
        results_(std::move(results)),
        is_barrier_(is_barrier),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{gpu()})) {
    const c10::StreamGuard on_its_own(communicator_->stream());
    future_->markCompleted(c10::IValue(results_));
  }

  // One that has taken too long counts as completed.
  bool isCompleted() override { return exception() || testing::is_over(recorded()); }
  bool isSuccess() const override { return !exception() && collective_->is_over(); }
  std::exception_ptr exception() const override { return collective_->error(); }
  void abort() override { communicator_->abort(); }
  void synchronize() override { block(recorded(), current_stream(gpu())); }
  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout) {
      wait_within(timeout);
    } else if (is_barrier_) {
      let_host_wait(record(current_stream(gpu())));
    }
    if (const auto error = exception()) {
      communicator_->abort();
      std::rethrow_exception(error);
    }
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override {
    collective_->wait();
    return collective_->source();
  }
  uint64_t getSequencenumber() const override { return collective_->sequence(); }

 private:
  c10::Device gpu() const { return communicator_->stream().device(); }
  Recorded recorded() const {
    return {.clock = collective_->operation().knows,
            .flights = {collective_},
            .capture = collective_->operation().capture};
  }
  void wait_within(std::chrono::milliseconds timeout) {
    const bool over = collective_->wait_until(Deadline(timeout));
    if (!over)
      communicator_->abort();
    TORCH_CHECK_WITH(DistBackendError,
                     over,
                     collective_->operation().name,
                     " #",
                     collective_->sequence(),
                     " timed out in blocking wait.");
    let_host_wait(recorded());
  }

  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Collective> collective_;
  const std::vector<at::Tensor> results_;
  const bool is_barrier_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// An operation that is being started, on the communicator's stream: it gives tensors as that has
// them.
class Start {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Start(std::shared_ptr<Communicator> communicator, const char* name)
      : communicator_(std::move(communicator)),
        order_(communicator_->order()),
        hidden_(none_),
        operation_(launch_behind(alive(name),
                                 communicator_->stream(),
                                 current_stream(communicator_->stream().device()))) {}

  at::Tensor in(const at::Tensor& tensor) { return reached(tensor, Use::read); }
  at::Tensor out(const at::Tensor& tensor) {
    at::Tensor memory = reached(tensor, Use::write);
    results_.push_back(tensor);
    written_.emplace_back(tensor);
    return memory;
  }
  at::Tensor both(const at::Tensor& tensor) {
    in(tensor);
    return out(tensor);
  }

  Tensors in(const Tensors& tensors) {
    return each(tensors, [&](const at::Tensor& tensor) { return in(tensor); });
  }
  Tensors out(const Tensors& tensors) {
    return each(tensors, [&](const at::Tensor& tensor) { return out(tensor); });
  }
  Tensors both(const Tensors& tensors) {
    return each(tensors, [&](const at::Tensor& tensor) { return both(tensor); });
  }
  std::vector<Tensors> in(const std::vector<Tensors>& lists) {
    std::vector<Tensors> found;
    for (const Tensors& list : lists)
      found.push_back(in(list));
    return found;
  }
  std::vector<Tensors> out(const std::vector<Tensors>& lists) {
    std::vector<Tensors> found;
    for (const Tensors& list : lists)
      found.push_back(out(list));
    return found;
  }

  // `on_host` starts it in shared memory, which may have failed since another rank has gone: NCCL
  // would not know.
  template <class OnHost>
  WorkPtr run(OnHost&& on_host, bool is_barrier = false) {
    if (operation_.capture != 0)
      refuse_in_capture(operation_.capture, cat("a fake communicator keeps no ", operation_.name));
    WorkPtr work;
    try {
      if (!communicator_->hangs_in(operation_.name))
        work = on_host();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument)
        throw;
    }
    auto collective = communicator_->add(operation_, std::move(work), std::move(written_));
    add_flight(communicator_->stream(), collective);
    return c10::make_intrusive<NcclWork>(
        communicator_, std::move(collective), std::move(results_), is_barrier);
  }

  // In a capture it is not started, and not watched: the graph keeps it.
  bool is_captured() const { return operation_.capture != 0; }
  WorkPtr keep(std::function<WorkPtr()> again) {
    graph_of(operation_.capture)->add([again = std::move(again)] { again()->synchronize(); });
    auto collective =
        std::make_shared<Collective>(operation_, 0, nullptr, std::vector<Spoilable>());
    collective->give_up();
    return c10::make_intrusive<NcclWork>(
        communicator_, std::move(collective), std::move(results_), /*is_barrier=*/false);
  }

 private:
  const char* alive(const char* name) {
    communicator_->expect_alive(name);
    return name;
  }

  at::Tensor reached(const at::Tensor& tensor, Use use) {
    TORCH_CHECK_VALUE(tensor.is_cuda() && tensor.layout() == at::kStrided,
                      "Tensors must be CUDA and dense");
    TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()),
                      "Tensors must be contiguous");
    TORCH_CHECK_VALUE(tensor.device() == communicator_->stream().device(),
                      "Tensors must be on the same device");
    TORCH_CHECK_TYPE(is_of_nccl(tensor.scalar_type()),
                     "Input tensor data type is not supported for NCCL process group: ",
                     tensor.scalar_type());
    record_on_stream(tensor.storage().data_ptr(), communicator_->stream());
    return reach(tensor, operation_, use);
  }

  // Those of LibTorch's table. Complex numbers go as pairs there.
  static bool is_of_nccl(at::ScalarType type) {
    constexpr at::ScalarType kTypes[] = {at::kFloat,
                                         at::kDouble,
                                         at::kHalf,
                                         at::kBFloat16,
                                         at::kChar,
                                         at::kByte,
                                         at::kInt,
                                         at::kLong,
                                         at::kBool,
                                         at::kFloat8_e5m2,
                                         at::kFloat8_e4m3fn,
                                         at::kFloat8_e4m3fnuz,
                                         at::kFloat8_e5m2fnuz};
    return contains(kTypes, c10::toRealValueType(type));
  }

  template <class Each>
  static Tensors each(const Tensors& tensors, Each&& each) {
    Tensors found;
    for (const at::Tensor& tensor : tensors)
      found.push_back(each(tensor));
    return found;
  }

  const std::shared_ptr<Communicator> communicator_;
  const std::unique_lock<std::mutex> order_;  // to the end: as in its stream, so in shared memory
  CallRecord none_;
  const OuterRecord hidden_;  // NCCL writes nothing down itself
  const Operation operation_;
  Tensors results_;
  std::vector<Spoilable> written_;
};

}  // namespace muster::testing
