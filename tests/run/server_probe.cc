// A training with a parameter server, for failures_test.py to kill parts of.
//
//   server_probe STEPS SERVERS STALENESS    says "worker <rank> pid <pid> step <n> loss <loss>"
//                                           every 10 steps
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "muster/base/strings.h"
#include "muster/parallel/averaging/parameter_client.h"
#include "muster/run/run.h"

namespace {

void say(const std::string& line) {
  std::cout << line + "\n" << std::flush;
}

void train_by_server(muster::Context& ctx,
                     int64_t steps,
                     const muster::ParameterServerOptions& options) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  muster::ProcessGroup& group = ctx.process_group();
  if (muster::keeps_parameters(group, options)) {
    const auto make = [](const std::vector<at::Tensor>& shard) {
      return std::make_unique<torch::optim::SGD>(shard, 0.02);
    };
    say(muster::cat("server ", group.rank(), " pid ", ::getpid()));
    const auto report = muster::ParameterServer(net->parameters(), group, make, options).serve();
    say(muster::cat("server ", group.rank(), " lost [", muster::join(report.lost, ", "), "]"));
    return;
  }
  muster::ParameterClient client(net->parameters(), group, options);
  torch::manual_seed(10 + group.rank());
  double loss = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    client.pull();
    net->zero_grad();
    const at::Tensor inputs = torch::randn({16, 8});
    at::Tensor error = torch::mse_loss(net->forward(inputs), inputs.sum(1, true).tanh());
    error.backward();
    client.push();
    loss = error.item<double>();
    if (step % 10 == 0)
      say(muster::cat(
          "worker ", group.rank(), " pid ", ::getpid(), " step ", step, " loss ", loss));
  }
  client.finish();
  say(muster::cat("worker ", group.rank(), " done loss ", loss));
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    train_by_server(ctx,
                    std::atoll(argv[1]),
                    {.servers = std::atoi(argv[2]), .staleness = std::atoll(argv[3])});
  });
}
