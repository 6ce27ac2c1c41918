// Ranks that take themselves to be on hosts of their own, as threads.
#include "muster/comm/hierarchical.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <future>
#include <thread>

#include "muster/base/clock.h"
#include "muster/comm/gloo.h"

namespace muster {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr std::chrono::minutes kFar{10};
constexpr double kAtOnce = 60;  // seconds: on a busy machine; far from the deadline

// Two ranks; `body` runs as rank 0, while rank 1, which has joined too, does nothing: its host has lost its
// power.
void with_a_silent_host(const std::function<BackendPtr(const c10::intrusive_ptr<c10d::Store>&, int)>& make,
                        const std::function<void(BackendPtr)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> over;
  std::thread silent([&] {
    const BackendPtr backend = make(store, 1);
    over.get_future().wait();
  });
  body(make(store, 0));
  over.set_value();
  silent.join();
}

BackendPtr two_hosts(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  return make_hierarchical(store, rank, {"a", "b"}, kFar, [](const auto& part, int number, int size) {
    return make_gloo(part, number, size, kFar, "127.0.0.1");
  });
}

c10::intrusive_ptr<c10d::Work> start_all_reduce(c10d::Backend& backend) {
  std::vector<at::Tensor> tensors{torch::ones({1000})};
  return backend.allreduce(tensors, c10d::AllreduceOptions());
}

TEST(Hierarchical, AbortEndsAWaitForAHostThatIsSilent) {
  with_a_silent_host(two_hosts, [](BackendPtr backend) {
    const auto work = start_all_reduce(*backend);
    const auto start = Clock::now();
    backend->abort();
    EXPECT_ANY_THROW(work->wait());
    backend.reset();
    EXPECT_LT(seconds_since(start), kAtOnce);
  });
}

TEST(Hierarchical, ShutdownDoesNotWaitForAHostThatIsSilent) {
  with_a_silent_host(two_hosts, [](BackendPtr backend) {
    const auto work = start_all_reduce(*backend);
    const auto start = Clock::now();
    backend->shutdown();
    EXPECT_ANY_THROW(work->wait());
    backend.reset();
    EXPECT_LT(seconds_since(start), kAtOnce);
  });
}

}  // namespace
}  // namespace muster
