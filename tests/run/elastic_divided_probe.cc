// Trains a model that is divided over ranks, or whose optimizer's state is, with averages of its
// weights, and kills a rank after a step.
//
//   elastic_divided_probe full|zero [--in-memory] [--kill RANK@STEP[/GENERATION]]…
//                         [--kill-keeping RANK@STEP] [--kill-host RANK@STEP] [--wait-for-go STEP]
//
// --kill-keeping: while the others keep the step. --kill-host kills the launcher of the rank's
// host, and so all ranks there. --wait-for-go: in the first generation the ranks wait after the
// step until the file `go` is there. Prints as elastic_probe does.
#include <muster/muster.h>
#include <torch/torch.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/digest.h"

namespace {

using muster::testing::digest_of;
using muster::testing::joined;
using muster::testing::moments_of;

constexpr int64_t kDividedSteps = 12;

struct RankKill {
  int rank = 0;
  int64_t step = 0;
  int generation = 0;
};

struct DividedOptions {
  std::string way;
  bool in_memory = false;
  std::vector<RankKill> kills, kills_keeping, host_kills;
  int64_t waits_after = 0;  // step; 0: never
};

// "2@7/1"
RankKill rank_kill_of(const std::string& text) {
  RankKill kill{.rank = std::atoi(text.c_str()),
                .step = std::atoll(text.c_str() + text.find('@') + 1)};
  if (const size_t slash = text.find('/'); slash != std::string::npos)
    kill.generation = std::atoi(text.c_str() + slash + 1);
  return kill;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_now(const std::vector<RankKill>& kills, muster::Context& ctx, int64_t step) {
  return std::ranges::any_of(kills, [&](const RankKill& kill) {
    return kill.rank == ctx.rank() && kill.step == step && kill.generation == ctx.env().attempt;
  });
}

void die_at(const std::vector<RankKill>& kills, muster::Context& ctx, int64_t step) {
  if (!is_now(kills, ctx, step))
    return;
  std::printf("killed at %.6f\n", seconds_now());
  std::fflush(stdout);
  std::raise(SIGKILL);
}

// The rank dies with its launcher.
void kill_host_at(const DividedOptions& options, muster::Context& ctx, int64_t step) {
  if (!is_now(options.host_kills, ctx, step))
    return;
  ::kill(::getppid(), SIGKILL);
  for (;;)
    ::pause();
}

void wait_for_go_after(const DividedOptions& options, muster::Context& ctx, int64_t step) {
  if (step != options.waits_after || ctx.env().attempt != 0)
    return;
  for (std::string is_there; is_there.empty();) {
    if (ctx.is_main() && std::ifstream("go"))
      is_there = "yes";
    ctx.process_group().broadcast_bytes(is_there, 0);
  }
}

struct DyingPart {
  const DividedOptions& options;
  muster::Context& ctx;
  int64_t step = 0;
  muster::SavedState state() const {
    die_at(options.kills_keeping, ctx, step);
    return {};
  }
  void load_state(const muster::SavedState&) {}
};

struct DividedNetImpl : torch::nn::Module {
  DividedNetImpl()
      : up(register_module("up", torch::nn::Linear(5, 33))),
        down(register_module("down", torch::nn::Linear(33, 2))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::dropout(up(x), 0.2, true)); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(DividedNet);

using Adam = torch::optim::AdamW;

template <class Forward, class Add>
void train_divided(muster::Context& ctx,
                   const DividedOptions& options,
                   muster::TrainStep& step,
                   muster::Ema& ema,
                   const Forward& forward,
                   const Add& add) {
  const auto x = torch::randn({72, 5}, at::detail::createCPUGenerator(2));
  auto data =
      ctx.loader(muster::TensorDataset(x, x.sum(1).gt(0).to(torch::kLong)), {.batch_size = 4});
  torch::manual_seed(static_cast<uint64_t>(100 + ctx.rank()));
  muster::Checkpoints checkpoints(ctx, {.every = 5, .in_memory_of_neighbours = options.in_memory});
  DyingPart dying{options, ctx};
  add(checkpoints);
  checkpoints.add("ema", ema).add("data", data).add("dying", dying);
  checkpoints.restore();
  for (const auto& batch : data.steps(kDividedSteps)) {
    step(batch, [&] { return torch::cross_entropy_loss(forward(batch.features), batch.labels); });
    ema.update();
    const int64_t done = dying.step = data.position().step;
    die_at(options.kills, ctx, done);
    kill_host_at(options, ctx, done);
    if (checkpoints.save_or_stop(done))
      return;
    if (ctx.is_main())
      std::printf("step %ld at %.6f\n", static_cast<long>(done), seconds_now());
    std::fflush(stdout);
    wait_for_go_after(options, ctx, done);
  }
  checkpoints.finish();
}

// `optimizer` has this rank's part.
void print_end(muster::Context& ctx,
               torch::nn::Module& net,
               torch::optim::Optimizer& optimizer,
               const muster::Ema& ema) {
  std::vector<at::Tensor> all = joined(net.parameters(), moments_of(optimizer));
  for (const auto& [name, average] : ema.averages())
    all.push_back(average);
  std::printf("end rank %d state %s next random %a\n",
              ctx.rank(),
              digest_of(all).c_str(),
              torch::rand({1}).item<double>());
}

void train_one_way(muster::Context& ctx, const DividedOptions& options) {
  at::set_num_threads(1);
  std::printf("begin rank %d pid %d generation %d\n", ctx.rank(), ::getpid(), ctx.env().attempt);
  std::fflush(stdout);
  ctx.seed_all(1);
  const auto group = ctx.process_group();
  DividedNet net;
  net->to(ctx.device());
  if (options.way == "full") {
    muster::FullySharded sharded(group);
    auto model = sharded.wrap(net);
    Adam optimizer(sharded.parameters(), 0.01);
    muster::TrainStep step(net, optimizer, {.group = group});
    muster::Ema ema(sharded.pieces(*net), 0.9);
    train_divided(
        ctx,
        options,
        step,
        ema,
        [&](const torch::Tensor& x) { return model(x); },
        [&](muster::Checkpoints& checkpoints) {
          checkpoints.add("model", sharded.pieces(*net))
              .add("optimizer", optimizer, sharded.pieces(*net));
        });
    const auto whole = sharded.whole_parameters();
    return print_end(ctx, *net, optimizer, ema);
  }
  muster::ShardedOptimizer<Adam> optimizer(net->parameters(),
                                           torch::optim::AdamWOptions(0.01),
                                           group,
                                           muster::ShardedOptimizerOptions{});
  muster::DistributedDataParallel model(net.ptr(), group, {.find_unused_parameters = true});
  muster::TrainStep step(model, optimizer, {.group = group});
  muster::Ema ema(*net, 0.9);
  train_divided(
      ctx,
      options,
      step,
      ema,
      [&](const torch::Tensor& x) { return model(x); },
      [&](muster::Checkpoints& checkpoints) {
        checkpoints.add("model", net).add("optimizer", optimizer, optimizer.pieces(*net));
      });
  print_end(ctx, *net, optimizer.part(), ema);
}

}  // namespace

int main(int argc, char** argv) {
  DividedOptions options;
  if (argc > 1)
    options.way = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--in-memory")
      options.in_memory = true;
    if (flag == "--kill")
      options.kills.push_back(rank_kill_of(argv[++i]));
    if (flag == "--kill-keeping")
      options.kills_keeping.push_back(rank_kill_of(argv[++i]));
    if (flag == "--kill-host")
      options.host_kills.push_back(rank_kill_of(argv[++i]));
    if (flag == "--wait-for-go")
      options.waits_after = std::atoll(argv[++i]);
  }
  return muster::run(argc, argv, [&](muster::Context& ctx) { train_one_way(ctx, options); });
}
