// Which thread lets go of an operation's tensors.
#include "muster/comm/host/operation.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <thread>

#include "muster/base/error.h"

namespace muster {
namespace {

class Watched {
 public:
  at::Tensor tensor() {
    return torch::from_blob(&value_, {1}, [this](void*) { gone_in_ = std::this_thread::get_id(); });
  }
  std::optional<std::thread::id> gone_in() const { return gone_in_; }

 private:
  float value_ = 0;
  std::optional<std::thread::id> gone_in_;
};

std::shared_ptr<HostOperation> operation_on(at::Tensor tensor) {
  HostCall call("all_reduce", c10d::OpType::ALLREDUCE);
  call.out(tensor);
  return std::make_shared<HostOperation>(std::move(call));
}

std::thread::id ended_by_another(std::shared_ptr<HostOperation> operation, Ended ended) {
  std::thread ending([&] { operation->end(std::move(ended)); });
  const auto id = ending.get_id();
  ending.join();
  return id;
}

TEST(HostWork, TheCallersThreadLetsGoOfTheTensors) {
  Watched watched;
  auto operation = operation_on(watched.tensor());
  auto work = c10::make_intrusive<HostWork>(0, 0, operation);
  auto future = work->getFuture();
  ended_by_another(operation, {});
  EXPECT_TRUE(work->wait());
  EXPECT_EQ(future->value().toTensorVector().size(), 1U);
  future.reset();
  EXPECT_EQ(watched.gone_in(), std::nullopt);
  work.reset();  // while the one that ended it may still have the operation
  EXPECT_EQ(watched.gone_in(), std::this_thread::get_id());
}

TEST(HostWork, ThoseOfAnAbandonedOneGoWhenItEnds) {
  Watched watched;
  auto operation = operation_on(watched.tensor());
  c10::make_intrusive<HostWork>(0, 0, operation).reset();
  EXPECT_EQ(watched.gone_in(), std::nullopt);
  const auto ended_in = ended_by_another(operation, {});
  EXPECT_EQ(watched.gone_in(), ended_in);
}

TEST(HostWork, MemoryInUseIsKeptAsLongAsTheOperation) {
  Watched watched;
  auto operation = operation_on(watched.tensor());
  auto work = c10::make_intrusive<HostWork>(0, 0, operation);
  const auto late = std::make_exception_ptr(Error(ErrorCode::timeout, "late"));
  ended_by_another(operation, {.error = late, .memory_in_use = true});
  EXPECT_THROW(work->wait(), Error);
  work.reset();
  EXPECT_EQ(watched.gone_in(), std::nullopt);
  operation.reset();
  EXPECT_NE(watched.gone_in(), std::nullopt);
}

TEST(HostWork, WhatItsFutureCallsFindsItEnded) {
  auto operation = operation_on(torch::ones({1}));
  auto work = c10::make_intrusive<HostWork>(0, 0, operation);
  bool waited = false;
  work->getFuture()->addCallback([&](c10::ivalue::Future&) {
    EXPECT_TRUE(work->isCompleted());
    waited = work->wait();
  });
  ended_by_another(operation, {});
  EXPECT_TRUE(waited);
}

TEST(HostWork, AWaitThatRunsOutLeavesItUnderWay) {
  auto operation = operation_on(torch::ones({1}));
  auto work = c10::make_intrusive<HostWork>(3, 7, operation);
  EXPECT_THROW(work->wait(std::chrono::milliseconds(1)), Error);
  EXPECT_FALSE(work->isCompleted());
  ended_by_another(operation, {.source = 2});
  EXPECT_TRUE(work->isSuccess());
  EXPECT_EQ(work->sourceRank(), 2);
  EXPECT_EQ(work->getSequencenumber(), 7U);
  EXPECT_TRUE(work->getFuture()->completed());  // asked for afterwards
}

}  // namespace
}  // namespace muster
