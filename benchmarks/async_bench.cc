// Whether training that does not wait reaches a loss sooner where one worker is slow. Ranks are
// threads of this process; a worker's step takes 10 ms (it sleeps), the slow one's 30 ms. Every
// gradient moves the model alike in all rows: an asynchronous update has the learning rate divided
// by the number of workers.
//
//   build/release/benchmarks/async_bench
#include <muster/muster.h>
#include <muster/parallel/averaging/parameter_client.h>
#include <muster/parallel/averaging/parameter_server.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace {

constexpr int kWorkers = 4;
constexpr double kTarget =
    0.05;  // of the mean squared error on data that no worker has; it begins near 0.5
constexpr double kRate = 0.2;
constexpr std::chrono::milliseconds kStep{10}, kSlowStep{30};

torch::Tensor answers(const torch::Tensor& inputs) {
  return inputs.narrow(1, 0, 4).sum(1, true).tanh();
}

struct Course {
  double seconds = 0;
  int64_t updates = 0;
};

// The server: how long until the loss is reached.
Course serve(muster::ProcessGroup& group,
             torch::nn::Sequential& net,
             const muster::ParameterServerOptions& options,
             std::atomic<bool>& reached) {
  const double rate = options.staleness == 0 ? kRate : kRate / kWorkers;
  const auto make = [&](const std::vector<at::Tensor>& shard) {
    return std::make_unique<torch::optim::SGD>(shard, rate);
  };
  muster::ParameterServer server(net->parameters(), group, make, options);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(99);
  const torch::Tensor inputs = torch::randn({256, 8}, generator), targets = answers(inputs);
  const auto begin = std::chrono::steady_clock::now();
  Course course;
  server.serve([&](torch::optim::Optimizer&, int64_t update) {
    if (reached || torch::mse_loss(net->forward(inputs), targets).item<double>() > kTarget)
      return;
    course = {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
              update};
    reached = true;
  });
  return course;
}

void work(muster::ProcessGroup& group,
          torch::nn::Sequential& net,
          const muster::ParameterServerOptions& options,
          const std::atomic<bool>& reached) {
  muster::ParameterClient client(net->parameters(), group, options);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(group.rank()));
  const bool slow = group.rank() == 1;
  while (!reached) {
    client.pull();
    net->zero_grad();
    const torch::Tensor inputs = torch::randn({32, 8}, generator);
    torch::mse_loss(net->forward(inputs), answers(inputs)).backward();
    std::this_thread::sleep_for(slow ? kSlowStep : kStep);
    client.push();
  }
  client.finish();
}

torch::nn::Sequential new_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
}

Course run(const muster::ParameterServerOptions& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> reached = false;
  Course course;
  std::vector<torch::nn::Sequential> nets;
  for (int rank = 0; rank <= kWorkers; ++rank)
    nets.push_back(new_net());
  std::vector<std::thread> threads;
  for (int rank = 0; rank <= kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      muster::ProcessGroup group = muster::init_process_group(store, rank, kWorkers + 1, {});
      torch::nn::Sequential& net = nets[static_cast<size_t>(rank)];
      if (rank == 0) {
        course = serve(group, net, options, reached);
      } else {
        work(group, net, options, reached);
      }
      group.shutdown();
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return course;
}

}  // namespace

int main() {
  std::printf("%d workers, one three times slower; until a loss of %g\n", kWorkers, kTarget);
  const Course synchronous = run({.staleness = 0});
  const Course bounded = run({.staleness = 4});
  const Course free = run({.staleness = muster::kAnyStaleness});
  const auto show = [](const char* name, const Course& course) {
    std::printf("%-32s %6.2f s  %5lld updates\n",
                name,
                course.seconds,
                static_cast<long long>(course.updates));
  };
  show("synchronous (staleness 0)", synchronous);
  show("at most 4 steps ahead", bounded);
  show("asynchronous (any staleness)", free);
  std::printf("synchronous / asynchronous: %.2f\n", synchronous.seconds / free.seconds);
}
