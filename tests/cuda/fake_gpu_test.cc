// The fake GPUs are as hard as true ones: each kind of missing synchronisation is an error or a
// wrong value, and the right program beside it is not refused. CMakeLists.txt gives the
// environment.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/error.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/comm/nccl/plugin.h"
#include "tests/cuda/fake_gpus.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

const c10::Device kOther(c10::kCUDA, 1);

int64_t waits() {
  using Count = int64_t (*)();
  return reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "count_waits_so_far"))();
}

at::Tensor pinned(at::IntArrayRef size, float value) {
  return torch::full(size, value).pin_memory();
}

class FakeGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    use_cuda_device(kGpu);
    side_ = gpus().getStreamFromGlobalPool(kGpu);
  }

  c10::Stream here() const { return gpus().getStream(kGpu); }
  c10::Stream side() const { return *side_; }

  // `later` waits for what `earlier` has now.
  static void let_wait(const c10::Stream& later, const c10::Stream& earlier) {
    c10::Event event(c10::kCUDA);
    event.record(earlier);
    event.block(later);
  }

 private:
  std::optional<c10::Stream> side_;
};

using FakeStreams = FakeGpu;
using FakeCopies = FakeGpu;
using FakeMemory = FakeGpu;
using FakeNccl = FakeGpu;

TEST_F(FakeStreams, AReadThatDoesNotWaitForTheWriteIsAnError) {
  const auto x = torch::ones({4}, kGpu);
  x.record_stream(side());
  const c10::StreamGuard guard(side());
  const std::string error = error_of([&] { x.add(1); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("aten::add on stream " + std::to_string(side().id()) +
                              " of cuda:0 reads memory that"),
                    HasSubstr("to wait for what stream 0 of cuda:0 wrote")));
  let_wait(side(), gpus().getDefaultStream(kGpu));
  EXPECT_EQ(error_of([&] { x.add(1); }), "");
}

TEST_F(FakeStreams, AWriteThatDoesNotWaitForTheReadIsAnError) {
  const auto x = torch::ones({4}, kGpu);
  x.record_stream(side());
  let_wait(side(), here());
  {
    const c10::StreamGuard guard(side());
    x.add(1);
  }
  EXPECT_THAT(error_of([&] { x.add_(1); }), HasSubstr("writes memory that aten::add"));
  x.add(1);  // reads do not wait for each other
  let_wait(here(), side());
  EXPECT_EQ(error_of([&] { x.add_(1); }), "");
}

TEST_F(FakeStreams, WhatTheHostHasWaitedForIsKnownToWhatItLaunches) {
  const std::vector<std::function<void()>> ways{
      [&] { gpus().synchronizeStream(here()); },
      [&] { gpus().synchronizeDevice(kGpu.index()); },
      [&] { EXPECT_TRUE(gpus().queryStream(here())); },
      [&] { torch::zeros({1}, kGpu).item<float>(); },
      [&] { std::async(std::launch::async, [] { gpus().synchronizeDevice(0); }).get(); },
  };
  for (const auto& wait : ways) {
    const auto x = torch::ones({4}, kGpu);
    x.record_stream(side());
    const c10::Stream before = here();
    const auto read = [&] {
      const c10::StreamGuard guard(side());
      x.add(1);
    };
    EXPECT_NE(error_of(read), "");
    wait();
    EXPECT_EQ(error_of(read), "");
    ASSERT_EQ(before, here());
  }
}

TEST_F(FakeStreams, AQuestionCountsForTheThreadThatAsks) {
  const auto x = torch::ones({4}, kGpu);
  x.record_stream(side());
  std::async(std::launch::async, [&] { EXPECT_TRUE(gpus().queryStream(here())); }).get();
  const c10::StreamGuard guard(side());
  EXPECT_NE(error_of([&] { x.add(1); }), "");
}

TEST_F(FakeStreams, PartsOfOneBlockAreDifferentMemory) {
  const auto x = torch::ones({8, 4}, kGpu);
  x.record_stream(side());
  let_wait(side(), here());
  x.slice(0, 0, 4).add_(1);
  x.slice(1, 0, 2).slice(0, 4, 8).add_(1);
  const c10::StreamGuard guard(side());
  EXPECT_EQ(error_of([&] { x.slice(1, 2, 4).slice(0, 4, 8).add_(1); }), "");
  EXPECT_NE(error_of([&] { x.slice(0, 3, 5).add_(1); }), "");
}

TEST_F(FakeStreams, MemoryIsUsedOnTheStreamsThatItIsFor) {
  const auto x = torch::ones({4}, kGpu);
  let_wait(side(), here());
  const c10::StreamGuard guard(side());
  EXPECT_THAT(error_of([&] { x.add(1); }), HasSubstr("record_stream()"));
}

TEST_F(FakeStreams, CopiesBetweenGpusWaitForBothStreams) {
  const auto x = torch::arange(4, kGpu);
  const auto y = x.to(kOther).add(1);
  EXPECT_EQ(y.device(), kOther);
  EXPECT_TRUE(y.cpu().equal(torch::arange(1, 5)));
}

TEST_F(FakeCopies, ToTheHostAreLate) {
  const auto x = torch::ones({4}, kGpu);
  const auto host = pinned({4}, 7);
  host.copy_(x, /*non_blocking=*/true);
  x.add_(1);  // behind the copy
  EXPECT_EQ(host.sum().item<float>(), 28);
  gpus().synchronizeStream(here());
  EXPECT_EQ(host.sum().item<float>(), 4);

  const auto copy = x.to(torch::kCPU, /*non_blocking=*/true);  // page-locked
  EXPECT_TRUE(copy.is_pinned());
  c10::Event event(c10::kCUDA);
  event.record(here());
  EXPECT_TRUE(event.query());
  EXPECT_EQ(copy.sum().item<float>(), 8);
}

TEST_F(FakeCopies, FromTheHostAreLate) {
  const auto early = pinned({4}, 1);
  const auto x = early.to(kGpu, /*non_blocking=*/true);
  early.fill_(5);
  EXPECT_EQ(x.sum().item<float>(), 20);

  const auto waited = pinned({4}, 1);
  const auto y = waited.to(kGpu, /*non_blocking=*/true);
  gpus().synchronizeStream(here());
  waited.fill_(5);
  EXPECT_EQ(y.sum().item<float>(), 4);

  const auto z = pinned({4}, 1).to(kGpu, /*non_blocking=*/true);  // whose source is gone
  EXPECT_EQ(z.sum().item<float>(), 4);
}

TEST_F(FakeCopies, OfOneStreamAreInOrder) {
  const auto host = pinned({4}, 7);
  host.copy_(torch::ones({4}, kGpu), /*non_blocking=*/true);
  const auto back = torch::zeros({4}, kGpu);
  back.copy_(host, /*non_blocking=*/true);
  EXPECT_EQ(back.add(1).sum().item<float>(), 8);
}

TEST_F(FakeCopies, OfOtherMemoryAreNotLate) {
  EXPECT_FALSE(torch::ones({4}).is_pinned());
  EXPECT_TRUE(pinned({4}, 1).slice(0, 1, 3).is_pinned());
  const auto host = torch::ones({4});
  const auto x = host.to(kGpu, /*non_blocking=*/true);
  host.fill_(5);
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(host.sum().item<float>(), 4);
}

TEST_F(FakeStreams, WaitsOfTheHostAreCounted) {
  const auto x = torch::ones({4}, kGpu);
  const auto host = torch::ones({4});
  c10::Event event(c10::kCUDA);
  event.record(here());
  const auto waits_of = [](const std::function<void()>& body) {
    const int64_t before = waits();
    body();
    return waits() - before;
  };
  EXPECT_EQ(waits_of([&] { gpus().synchronizeStream(here()); }), 1);
  EXPECT_EQ(waits_of([&] { gpus().synchronizeDevice(kGpu.index()); }), 1);
  EXPECT_EQ(waits_of([&] { event.synchronize(); }), 1);
  EXPECT_EQ(waits_of([&] { x[1].item<float>(); }), 1);
  EXPECT_EQ(waits_of([&] { x.cpu(); }), 1);
  EXPECT_EQ(waits_of([&] { x.copy_(host); }), 1);
  EXPECT_EQ(waits_of([&] { x.equal(x); }), 1);
  EXPECT_EQ(waits_of([&] { x.nonzero(); }), 1);
  EXPECT_EQ(waits_of([&] { x.index({x > 0}); }), 1);
  EXPECT_EQ(waits_of([&] { x.add(1).matmul(x).relu(); }), 0);
  EXPECT_EQ(waits_of([&] { pinned({4}, 1).to(kGpu, /*non_blocking=*/true); }), 0);
  EXPECT_EQ(waits_of([&] { event.query(); }), 0);
}

TEST_F(FakeMemory, IsFullWhenItsLimitIsReached) {
  const auto half = [] {
    return torch::empty({300 << 20}, at::TensorOptions(kGpu).dtype(torch::kUInt8));
  };
  {
    const auto first = half();
    try {
      half();
      FAIL() << "expected to run out of memory";
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("CUDA out of memory. Tried to allocate 300.00 MiB. GPU 0 has a total "
                            "capacity of 512.00 MiB"));
    }
  }
  half();
}

c10::intrusive_ptr<c10d::Backend> communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank = 0,
                                               int size = 1,
                                               milliseconds timeout = std::chrono::minutes(1)) {
  return make_nccl(
      store,
      {.rank = rank, .size = size, .ordinal = rank, .watchdog_timeout = timeout, .name = "a test"});
}

c10::intrusive_ptr<c10d::Backend> communicator_of_one() {
  return communicator(c10::make_intrusive<c10d::HashStore>());
}

// `body` as two ranks, which are threads.
template <class Body>
void on_two_ranks(Body&& body, milliseconds timeout = std::chrono::minutes(1)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      use_cuda_device({c10::kCUDA, static_cast<c10::DeviceIndex>(rank)});
      body(rank, communicator(store, rank, 2, timeout));
    });
  }
  for (std::thread& rank : ranks)
    rank.join();
}

TEST_F(FakeNccl, ASumThatIsNotWaitedForMayNotBeUsed) {
  const auto nccl = communicator_of_one();
  Tensors x{torch::ones({4}, kGpu)};
  const auto work = nccl->allreduce(x);
  EXPECT_THAT(error_of([&] { x[0].add(1); }), HasSubstr("all_reduce on stream 1"));
  const int64_t before = waits();
  work->wait();
  EXPECT_EQ(waits(), before);
  EXPECT_EQ(x[0].add(1).sum().item<float>(), 8);
  nccl->shutdown();
}

TEST_F(FakeNccl, ACommunicatorThatIsDroppedLosesItsSums) {
  Tensors x{torch::ones({4}, kGpu)};
  {
    const auto nccl = communicator_of_one();
    nccl->allreduce(x)->wait();  // by the stream
  }
  EXPECT_TRUE(x[0].isnan().all().item<bool>());
}

TEST_F(FakeNccl, ACommunicatorThatIsDroppedKeepsWhatTheHostHasWaitedFor) {
  Tensors x{torch::ones({4}, kGpu)};
  {
    const auto nccl = communicator_of_one();
    nccl->allreduce(x)->wait();
    gpus().synchronizeStream(here());
  }
  EXPECT_EQ(x[0].sum().item<float>(), 4);
}

TEST_F(FakeNccl, ShutdownWaitsForWhatIsUnderWay) {
  Tensors x{torch::ones({4}, kGpu)};
  const auto nccl = communicator_of_one();
  nccl->allreduce(x)->wait();
  nccl->shutdown();
  EXPECT_EQ(x[0].sum().item<float>(), 4);
  EXPECT_NE(error_of([&] { nccl->allreduce(x); }), "");
}

TEST_F(FakeNccl, TheHostGoesOnUntilItReadsTheSum) {
  std::promise<void> looked;
  auto has_looked = looked.get_future().share();
  on_two_ranks([&](int rank, const auto& nccl) {
    Tensors x{torch::full({4}, rank + 1, c10::Device(c10::kCUDA, nccl->getRank()))};
    if (rank == 1)
      has_looked.wait();
    const auto work = nccl->allreduce(x);
    work->wait();
    if (rank == 0) {
      EXPECT_FALSE(work->isCompleted());
      EXPECT_FALSE(gpus().queryStream(gpus().getStream(kGpu)));
      looked.set_value();
    }
    EXPECT_EQ(x[0].sum().template item<int64_t>(), 12);
    EXPECT_TRUE(work->isCompleted());
    nccl->shutdown();
  });
}

TEST_F(FakeNccl, CollectivesAreRightAndInOrder) {
  on_two_ranks([&](int rank, const auto& nccl) {
    const c10::Device gpu(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    at::Tensor mine = torch::full({2}, rank + 1.0, gpu);
    at::Tensor all = torch::zeros({4}, gpu);
    at::Tensor part = torch::zeros({2}, gpu);
    nccl->_allgather_base(all, mine);
    nccl->_reduce_scatter_base(part, all);
    Tensors last{part};
    c10d::BroadcastOptions from_last;
    from_last.rootRank = 1;
    nccl->broadcast(last, from_last)->wait();
    EXPECT_EQ(part.sum().template item<float>(), 8);
    const int64_t before = waits();
    nccl->barrier()->wait();
    EXPECT_GE(waits() - before, 1);
    nccl->shutdown();
  });
}

TEST_F(FakeNccl, ALimitOfOneWaitEndsTheCommunicator) {
  std::promise<void> failed;
  auto has_failed = failed.get_future().share();
  on_two_ranks([&](int rank, const auto& nccl) {
    if (rank == 1)
      return has_failed.wait();
    Tensors x{torch::ones({4}, kGpu)};
    const auto work = nccl->allreduce(x);
    EXPECT_THAT(error_of([&] { work->wait(milliseconds(100)); }), HasSubstr("timed out"));
    EXPECT_NE(error_of([&] { nccl->allreduce(x); }), "");
    failed.set_value();
  });
}

TEST_F(FakeNccl, AWorkThatHasTakenTooLongHasFailed) {
  std::promise<void> failed;
  auto has_failed = failed.get_future().share();
  on_two_ranks(
      [&](int rank, const auto& nccl) {
        if (rank == 1)
          return has_failed.wait();
        Tensors x{torch::ones({4}, kGpu)};
        const auto work = nccl->allreduce(x);
        while (!work->isCompleted())
          std::this_thread::sleep_for(milliseconds(5));
        EXPECT_FALSE(work->isSuccess());
        EXPECT_THAT(error_of([&] { work->wait(); }), HasSubstr("operation timeout"));
        failed.set_value();
      },
      milliseconds(100));
}

TEST_F(FakeNccl, ARankWaitsInVainForOneThatHasGivenUp) {
  std::promise<void> given_up;
  auto has_given_up = given_up.get_future().share();
  on_two_ranks([&](int rank, const auto& nccl) {
    Tensors x{torch::ones({4}, c10::Device(c10::kCUDA, nccl->getRank()))};
    if (rank == 1) {
      nccl->abort();
      return given_up.set_value();
    }
    has_given_up.wait();
    const auto work = nccl->allreduce(x);
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(work->isCompleted());
    nccl->abort();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(x[0].isnan().all().template item<bool>());
  });
}

// Never returns where the process does not end.
void wait_for_a_rank_that_does_not_come() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", /*overwrite=*/1);  // LibTorch's default
  on_two_ranks(
      [](int rank, const auto& nccl) {
        Tensors x{torch::ones({4}, c10::Device(c10::kCUDA, nccl->getRank()))};
        if (rank == 0)
          nccl->allreduce(x)->wait();
        std::this_thread::sleep_for(std::chrono::seconds(30));
      },
      milliseconds(300));
}

TEST_F(FakeNccl, TheWatchdogEndsAProcessThatWaitsTooLong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_for_a_rank_that_does_not_come(),
              ::testing::KilledBySignal(SIGABRT),
              "Watchdog caught collective operation timeout: all_reduce #1 ran for");
}

}  // namespace
}  // namespace muster
