// The fake GPUs capture as true ones: nothing of a capture is done, a replay does all of it in the
// memory of the capture, and what a true GPU refuses meanwhile is an error. CMakeLists.txt gives
// the environment.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "muster/comm/nccl/gpu_graph.h"
#include "muster/comm/nccl/nccl.h"
#include "muster/comm/nccl/plugin.h"
#include "tests/cuda/fake_gpus.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

void let_wait(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(c10::kCUDA);
  event.record(earlier);
  event.block(later);
}

class FakeGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    use_cuda_device(kGpu);
    own_ = new_gpu_stream(kGpu);
    guard_.emplace(*own_);
  }
  void TearDown() override { guard_.reset(); }

  c10::Stream own() const { return *own_; }

  static std::unique_ptr<GpuGraph> captured(const std::function<void()>& body) {
    auto graph = make_gpu_graph();
    graph->begin();
    body();
    graph->end();
    return graph;
  }

  // What is wrong with a capture of `body`.
  static std::string wrong_with(const std::function<void()>& body) {
    const auto graph = make_gpu_graph();
    graph->begin();
    const std::string what = error_of(body);
    const std::string in_the_end = error_of([&] { graph->end(); });
    EXPECT_EQ(what.empty(), in_the_end.empty())
        << "what has failed within fails in the end: " << in_the_end;
    return what;
  }

 private:
  std::optional<c10::Stream> own_;
  std::optional<c10::StreamGuard> guard_;
};

TEST_F(FakeGraph, ACaptureDoesNothingAndAReplayAllOfIt) {
  const auto x = torch::ones({4}, kGpu);
  at::Tensor sum;
  const auto graph = captured([&] {
    x.mul_(3);
    sum = x.sum();
  });
  EXPECT_EQ(x.sum().item<float>(), 4);
  EXPECT_TRUE(sum.isnan().item<bool>()) << "the result of a capture is not there yet";
  graph->replay();
  EXPECT_EQ(sum.item<float>(), 12);
  x.fill_(2);
  graph->replay();
  EXPECT_EQ(sum.item<float>(), 24);
  EXPECT_EQ(x.sum().item<float>(), 24);
}

TEST_F(FakeGraph, RandomNumbersAreNewInEachReplay) {
  const auto x = torch::zeros({16}, kGpu);
  const auto fresh = [] {
    torch::manual_seed(4);
  };
  fresh();
  const auto graph = captured([&] { x.normal_(); });
  graph->replay();
  const auto first = x.cpu();
  graph->replay();
  const auto second = x.cpu();
  EXPECT_FALSE(torch::equal(first, second));
  fresh();
  EXPECT_TRUE(torch::equal(x.normal_().cpu(), first)) << "as without a graph";
  EXPECT_TRUE(torch::equal(x.normal_().cpu(), second));
}

TEST_F(FakeGraph, ItsMemoryLivesAsLongAsTheGraph) {
  const auto out = torch::zeros({4}, kGpu);
  const auto graph = captured([&] {
    const auto mine = torch::full({4}, 7, kGpu);
    out.copy_(mine);
  });
  graph->replay();
  EXPECT_EQ(out.sum().item<float>(), 28);
}

TEST_F(FakeGraph, OtherMemoryHasToStay) {
  const auto out = torch::zeros({4}, kGpu);
  auto other = torch::ones({4}, kGpu);
  const auto graph = captured([&] { out.add_(other); });
  graph->replay();
  other.reset();
  EXPECT_THAT(error_of([&] { graph->replay(); }), HasSubstr("an address that it has not"));
}

TEST_F(FakeGraph, WaitsAndQuestionsFailTheCapture) {
  const auto x = torch::ones({4}, kGpu);
  const auto refused = HasSubstr("operation not permitted when stream is capturing");
  const std::vector<std::function<void()>> ways{
      [&] { x.sum().item<float>(); },
      [&] { x.cpu(); },
      [&] { x.nonzero(); },
      [&] { x.copy_(torch::ones({4})); },
      [&] { gpus().synchronizeStream(own()); },
      [&] { gpus().queryStream(own()); },
      [&] { gpus().synchronizeDevice(kGpu.index()); },
      [&] {
        c10::Event event(c10::kCUDA);
        event.record(own());
        event.query();
      },
  };
  for (size_t i = 0; i < ways.size(); ++i)
    EXPECT_THAT(wrong_with(ways[i]), refused) << "way " << i;
}

TEST_F(FakeGraph, StreamsThatJoinHaveToBeWaitedFor) {
  const auto x = torch::ones({4}, kGpu);
  const c10::Stream other = new_gpu_stream(kGpu);
  x.record_stream(other);
  const auto fork = [&] {
    let_wait(other, own());
    const c10::StreamGuard there(other);
    x.add_(1);
  };
  const auto graph = make_gpu_graph();
  graph->begin();
  fork();
  EXPECT_THAT(error_of([&] { graph->end(); }), HasSubstr("before the stream waits for all"));
  const auto whole = captured([&] {
    fork();
    let_wait(own(), other);
  });
  x.fill_(1);
  whole->replay();
  EXPECT_EQ(x.sum().item<float>(), 8);
}

TEST_F(FakeGraph, OtherStreamsStayOut) {
  const c10::Stream other = new_gpu_stream(kGpu);
  const c10::Stream usual = gpus().getDefaultStream(kGpu);
  EXPECT_THAT(wrong_with([&] { let_wait(usual, own()); }), HasSubstr("the default stream waits"));
  EXPECT_THAT(wrong_with([&] {
                const c10::StreamGuard there(other);
                torch::ones({4}, kGpu);
                let_wait(own(), other);
              }),
              HasSubstr("it waits for work of another stream that is not captured"));
  const c10::StreamGuard there(usual);
  EXPECT_THAT(error_of([] { make_gpu_graph()->begin(); }), HasSubstr("on the default stream"));
}

TEST_F(FakeGraph, SumsOfTwoRanksAreCapturedAndReplayed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const c10::Device gpu(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
      use_cuda_device(gpu);
      const auto nccl = make_nccl(store,
                                  {.rank = rank,
                                   .size = 2,
                                   .ordinal = rank,
                                   .watchdog_timeout = std::chrono::minutes(1),
                                   .name = "captured"});
      const c10::StreamGuard there(new_gpu_stream(gpu));
      Tensors x{torch::full({4}, rank + 1.0, gpu)};
      gpus().synchronizeDevice(gpu.index());
      auto graph = captured([&] { nccl->allreduce(x)->wait(); });
      EXPECT_EQ(x[0].sum().item<float>(), 4 * (rank + 1.0)) << "nothing was summed";
      graph->replay();
      graph->replay();
      EXPECT_EQ(x[0].sum().item<float>(), 24);
      graph.reset();
      nccl->shutdown();
    });
  }
  for (auto& rank : ranks)
    rank.join();
}

// NCCL waits for the graph in shutdown(), and in an abort.
TEST_F(FakeGraph, GoesWithACommunicatorThatItHasCaptured) {
  const auto nccl = make_nccl(c10::make_intrusive<c10d::HashStore>(),
                              {.rank = 0,
                               .size = 1,
                               .ordinal = 0,
                               .watchdog_timeout = std::chrono::minutes(1),
                               .name = "alone"});
  Tensors x{torch::ones({4}, kGpu)};
  gpus().synchronizeDevice(kGpu.index());
  const auto graph = captured([&] { nccl->allreduce(x)->wait(); });
  graph->replay();
  end_communicator([&] { nccl->shutdown(); });
  EXPECT_THAT(error_of([&] { graph->replay(); }), HasSubstr("got the end of one of this process"));
}

}  // namespace
}  // namespace muster
