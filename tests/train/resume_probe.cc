// Trains with dropout for 12 steps, saving every third, and prints what each rank has at the end.
//
//   resume_probe --kill-at N          in its first attempt rank 1 dies at once after step N
//   resume_probe --stop-at N SIGNAL   after step N rank 1 sends its launcher the signal, and waits
//                                     until it has come here
//   resume_probe --resume             goes on from the newest checkpoint
//   resume_probe --in FOLDER GATE     saves into FOLDER, and goes on after step 6 when GATE is
//   there resume_probe --again-in FOLDER    goes on from the newest checkpoint in FOLDER
//   resume_probe --load FOLDER        only loads it
#include <muster/muster.h>
#include <torch/torch.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "tests/support/digest.h"

namespace {

struct Plan {
  int64_t kill_at = 0;
  int64_t stop_at = 0;
  int signal = 0;
  bool resume = false;
  std::string folder = {};
  std::string gate = {};
  bool only_loads = false;
};

void wait_for(const std::string& gate) {
  std::printf("waits\n");
  std::fflush(stdout);
  while (!std::filesystem::exists(gate))
    ::usleep(1000);
}

void be_stopped(muster::Context& ctx, int signal) {
  ctx.stop_requested();
  ::kill(::getppid(), signal);
  std::printf("rank %d waits\n", ctx.rank());
  std::fflush(stdout);
  while (!ctx.stop_requested())
    ::usleep(1000);
}

void train_and_print(muster::Context& ctx, const Plan& plan) {
  ctx.seed_all(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 16),
                            torch::nn::Dropout(0.5),
                            torch::nn::BatchNorm1d(16),
                            torch::nn::Linear(16, 2));
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = 12}));
  const auto x = torch::randn({64, 4}, at::detail::createCPUGenerator(2));
  auto data = ctx.loader(muster::TensorDataset(x, x.sum(1).gt(0).to(torch::kLong)),
                         {.batch_size = 4, .accumulate = 2, .workers = 1});
  torch::manual_seed(static_cast<uint64_t>(100 + ctx.rank()));  // each rank drops others
  muster::Checkpoints checkpoints(
      ctx, {.folder = plan.folder, .every = plan.only_loads ? 0 : 3, .resume = plan.resume});
  muster::Metrics metrics(ctx);
  checkpoints.add("model", net.ptr()).add("optimizer", optimizer).add("schedule", schedule);
  checkpoints.add("data", data).add("metrics", metrics);
  checkpoints.restore();
  if (plan.only_loads)
    return;
  if (ctx.rank() == 0)
    std::printf("trains\n");
  muster::DistributedDataParallel model(net.ptr(), ctx.process_group());
  muster::TrainStep step(model, optimizer, {.schedule = &schedule});
  for (const auto& batch : data.steps(12)) {
    const auto loss =
        step(batch, [&] { return torch::cross_entropy_loss(model(batch.features), batch.labels); });
    metrics.mean("loss", loss, static_cast<double>(batch.size()));
    if (!batch.last)
      continue;
    const int64_t done = data.position().step;
    metrics.write_every(5, done);
    if (done == plan.stop_at && ctx.rank() == 1)
      be_stopped(ctx, plan.signal);
    if (checkpoints.save_or_stop(done))
      return;
    if (done == 6 && ctx.rank() == 0 && !plan.gate.empty())
      wait_for(plan.gate);
    if (done == plan.kill_at && ctx.rank() == 1 && ctx.env().attempt == 0)
      std::raise(SIGKILL);
  }
  using namespace muster::testing;
  // The running statistics of the last step are each rank's own.
  std::printf("rank %d state %s buffers %s next random %a\n",
              ctx.rank(),
              digest_of(joined(net->parameters(), moments_of(optimizer))).c_str(),
              digest_of(net->buffers()).c_str(),
              torch::rand({1}).item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  const auto is = [&](const char* option) {
    return argc > 1 && std::strcmp(argv[1], option) == 0;
  };
  if (is("--kill-at"))
    plan.kill_at = std::atoll(argv[2]);
  if (is("--stop-at"))
    plan = {.stop_at = std::atoll(argv[2]), .signal = std::atoi(argv[3])};
  if (is("--resume"))
    plan.resume = true;
  if (is("--in"))
    plan = {.folder = argv[2], .gate = argv[3]};
  if (is("--again-in"))
    plan = {.resume = true, .folder = argv[2]};
  if (is("--load"))
    plan = {.resume = true, .folder = argv[2], .only_loads = true};
  return muster::run(argc, argv, [&](muster::Context& ctx) { train_and_print(ctx, plan); });
}
