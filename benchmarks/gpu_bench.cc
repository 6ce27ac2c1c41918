// What reaches a GPU beside the training on it: `muster run --gpus 0 gpu_bench staging | prefetch`.
//
// staging: a bucket of gradients goes to the host and back, as it does between ranks that share a
// GPU, while the GPU multiplies matrices. From pageable memory; from pinned memory on the stream
// that computes; and from pinned memory on a stream of its own. prefetch: a loader's batches come
// to the GPU while it trains. How long is the thread that launches kernels held up by them?
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <stdexcept>

namespace {

constexpr int64_t kBucket = 6'250'000;  // floats: 25 MB, the largest bucket by default
constexpr int kRounds = 20;

c10::impl::VirtualGuardImpl gpu() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA);
}

// Milliseconds of a round: until the GPU has done all of it.
double time_rounds(const c10::Device& device, const std::function<void()>& round) {
  round();
  gpu().synchronizeDevice(device.index());
  const auto begin = muster::Clock::now();
  for (int i = 0; i < kRounds; ++i)
    round();
  gpu().synchronizeDevice(device.index());
  return muster::seconds_since(begin) * 1e3 / kRounds;
}

class Staging {
 public:
  Staging(c10::Device device, bool pinned, bool own_stream)
      : device_(device),
        bucket_(torch::randn({kBucket}, torch::kFloat).to(device)),
        host_(torch::empty({kBucket}, torch::TensorOptions().pinned_memory(pinned))) {
    if (own_stream)
      own_stream_ = gpu().getStreamFromGlobalPool(device);
  }

  // Behind what the computing stream has now; what comes there later does not wait, but on a stream
  // of its own.
  void there_and_back() {
    if (!own_stream_)
      return copy();
    c10::Event computed(c10::kCUDA);
    computed.record(gpu().getStream(device_));
    const c10::StreamGuard guard(*own_stream_);
    computed.block(*own_stream_);
    copy();
  }

 private:
  void copy() {
    host_.copy_(bucket_, /*non_blocking=*/true);
    bucket_.copy_(host_, /*non_blocking=*/true);
  }

  c10::Device device_;
  std::optional<c10::Stream> own_stream_;
  at::Tensor bucket_, host_;
};

void print_ratio(const char* what, double value) {
  std::printf("%-60s %6.3f\n", what, value);
}

// Enough matrix products to take as long as the copies of pinned memory.
int products_beside(const c10::Device& device, const at::Tensor& a, double milliseconds) {
  const double one = time_rounds(device, [&] { a.mm(a); });
  return std::max(1, static_cast<int>(milliseconds / one));
}

void time_staging(const c10::Device& device) {
  const auto a = torch::randn({4096, 4096}, device);
  Staging pageable(device, false, false), pinned(device, true, false), beside(device, true, true);
  const double pageable_ms = time_rounds(device, [&] { pageable.there_and_back(); });
  const double pinned_ms = time_rounds(device, [&] { pinned.there_and_back(); });
  const int products = products_beside(device, a, pinned_ms);
  const auto compute = [&] {
    for (int i = 0; i < products; ++i)
      a.mm(a);
  };
  const double compute_ms = time_rounds(device, compute);
  const auto with = [&](Staging& staging) {
    return time_rounds(device, [&] {
      staging.there_and_back();
      compute();
    });
  };
  const double same_ms = with(pinned), beside_ms = with(beside), slow_ms = with(pageable);
  std::printf("25 MB to the host and back: pageable %.3f ms, pinned %.3f ms (%.1f GB/s each way)\n",
              pageable_ms,
              pinned_ms,
              2 * kBucket * 4 / pinned_ms / 1e6);
  std::printf(
      "%d matrix products: %.3f ms; with the copies: pageable %.3f, same stream %.3f, own stream "
      "%.3f ms\n",
      products,
      compute_ms,
      slow_ms,
      same_ms,
      beside_ms);
  print_ratio("pinned ÷ pageable, copies alone", pinned_ms / pageable_ms);
  print_ratio("own stream ÷ the computing stream, with the products", beside_ms / same_ms);
}

struct Prefetching {
  const char* name;
  bool pinned;
  std::optional<int> workers;
};

// Milliseconds a step.
struct PrefetchTimes {
  double step = 0;     // all of it
  double loader = 0;   // of the thread that launches kernels, within the loader
  double stalled = 0;  // of these, waiting for a worker
};

PrefetchTimes time_steps(const muster::TensorDataset& data,
                         int64_t batch_size,
                         const muster::Context& ctx,
                         const Prefetching& kind,
                         const std::function<void(const muster::LabelledExample&)>& train) {
  constexpr int64_t kWarmUp = 20, kSteps = 200;
  muster::DataLoader loader(data,
                            {.batch_size = batch_size,
                             .device = ctx.device(),
                             .pin_memory = kind.pinned,
                             .workers = kind.workers,
                             .check_weight = false});
  auto steps = loader.steps(kSteps);
  auto begin = muster::Clock::now();
  double begin_stalled = 0, in_loader = 0;
  int64_t step = 0;
  for (auto it = steps.begin(); it != loader.end();) {
    train(*it);
    if (++step == kWarmUp) {
      gpu().synchronizeDevice(ctx.device().index());
      begin = muster::Clock::now();
      begin_stalled = loader.stats().seconds_stalled;
      in_loader = 0;
    }
    const auto before = muster::Clock::now();
    ++it;
    in_loader += muster::seconds_since(before);
  }
  gpu().synchronizeDevice(ctx.device().index());
  const double each = 1e3 / static_cast<double>(kSteps - kWarmUp);
  return {.step = muster::seconds_since(begin) * each,
          .loader = in_loader * each,
          .stalled = (loader.stats().seconds_stalled - begin_stalled) * each};
}

void time_prefetch(const muster::Context& ctx) {
  constexpr int64_t kBatch = 256;
  torch::manual_seed(3);
  const muster::TensorDataset data(torch::randn({kBatch * 16, 3, 64, 64}),
                                   torch::randint(10, {kBatch * 16}));
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)),
                            torch::nn::ReLU(),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 64, 3).padding(1)),
                            torch::nn::ReLU(),
                            torch::nn::AdaptiveAvgPool2d(1),
                            torch::nn::Flatten(),
                            torch::nn::Linear(64, 10));
  net->to(ctx.device());
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const auto train = [&](const muster::LabelledExample& batch) {
    optimizer.zero_grad();
    torch::cross_entropy_loss(net->forward(batch.features), batch.labels).backward();
    optimizer.step();
  };
  for (const Prefetching& kind : {Prefetching{"pageable, no worker", false, 0},
                                  Prefetching{"pinned, no worker", true, 0},
                                  Prefetching{"pinned, the default", true, {}},
                                  Prefetching{"pinned, 4 workers", true, 4}}) {
    const PrefetchTimes ms = time_steps(data, kBatch, ctx, kind, train);
    std::printf("%-20s %.3f ms a step, %.3f of them in the loader; stalled share %.3f%s\n",
                kind.name,
                ms.step,
                ms.loader,
                ms.stalled / ms.step,
                kind.workers == 0 ? "" : " (bar 0.02)");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    const std::string what = argc > 1 ? argv[1] : "";
    if (!ctx.device().is_cuda())
      throw std::runtime_error("gpu_bench: expected a GPU, got " + ctx.device().str() +
                               "; see `muster devices`");
    if (what == "staging")
      return time_staging(ctx.device());
    if (what == "prefetch")
      return time_prefetch(ctx);
    throw std::invalid_argument("gpu_bench: expected staging or prefetch, got '" + what + "'");
  });
}
