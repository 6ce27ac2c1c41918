// Trains with dropout on the CPU, and kills ranks at chosen steps. A kill has a rank, a step, a
// generation and a place; it happens once, as a process of another generation is another.
//
//   elastic_probe [--steps N] [--every N] [--background] [--keep N] [--samples FOLDER] [--divided]
//                 [--kill RANK@STEP[/GENERATION | /*][:PLACE]]… [--throw RANK@STEP | all@STEP]
//                 [--hang RANK@STEP] [--kill-host RANK@STEP] [--stay all@STEP] [--crash RANK@STEP]
//                 [--slow RANK@STEP] [--deaf] [--optimizer muster]
//
// --optimizer muster: its AdamW, with which no step waits for a GPU.
// --crash is a kill by SIGSEGV, in a function of that name; --slow takes 5 s to tell what is to be
// kept; --deaf saves as always, but never asks whether it is to stop.
// --kill-host kills the launcher of the rank's host, and so all ranks there; at --stay the ranks
// meet again and again after the step, until they are interrupted; with the place `go` until the
// file `go` is there.
//
// PLACE: step (after the step, before it is kept: the default), backward, keep (while others keep
// it), save (while rank 0 writes), restore (before the ranks compare what they have), join (before
// the group is made, in the generation), exit (after the function and its last barrier; the others
// end once the next generation is told). Prints a line for each process and call, `begin`, and one
// at the end, `end`, with bits.
#include <muster/muster.h>
#include <torch/torch.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/digest.h"

namespace {

using muster::testing::digest_of;
using muster::testing::joined;
using muster::testing::moments_of;

constexpr int kAnyGeneration = -1;

struct Kill {
  int rank = 0;  // -1: all
  int64_t step = 0;
  int generation = 0;
  std::string place = "step";
};

struct Plan {
  int64_t steps = 12;
  int64_t every = 0;
  std::optional<int64_t> keep;
  bool background = false;
  bool divided = false;
  bool deaf = false;
  std::string optimizer = "torch";
  std::string samples;
  std::vector<Kill> kills, throws, hangs, host_kills, stays, crashes, slow;
};

// "2@7/1:backward", "all@3"
Kill kill_of(std::string text) {
  Kill kill;
  if (const size_t colon = text.find(':'); colon != std::string::npos) {
    kill.place = text.substr(colon + 1);
    text.resize(colon);
  }
  if (const size_t slash = text.find('/'); slash != std::string::npos) {
    kill.generation = text[slash + 1] == '*' ? kAnyGeneration : std::atoi(text.c_str() + slash + 1);
    text.resize(slash);
  }
  kill.rank = text.starts_with("all") ? -1 : std::atoi(text.c_str());
  kill.step = std::atoll(text.c_str() + text.find('@') + 1);
  return kill;
}

bool is_here(const std::vector<Kill>& kills,
             muster::Context& ctx,
             int64_t step,
             const char* place) {
  for (const Kill& kill : kills) {
    const bool is_rank = kill.rank < 0 || kill.rank == ctx.rank();
    const bool is_now = kill.generation == kAnyGeneration || kill.generation == ctx.env().attempt;
    if (is_rank && is_now && kill.step == step && kill.place == place)
      return true;
  }
  return false;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void die() {
  std::printf("killed at %.6f\n", now());
  std::fflush(stdout);
  std::raise(SIGKILL);
}

[[gnu::noinline]] void crash() {
  int* volatile nowhere = nullptr;
  *nowhere = 1;  // NOLINT(clang-analyzer-core.NullDereference)
}

// Dies with its launcher, which shows nothing more: so the time is left in a file.
void kill_host() {
  std::ofstream("killed") << std::fixed << "killed at " << now() << std::endl;
  ::kill(::getppid(), SIGKILL);
  for (;;)
    ::pause();
}

void wait_for_go(muster::Context& ctx) {
  for (std::string is_there; is_there.empty();) {
    if (ctx.rank() == 0 && std::ifstream("go"))
      is_there = "yes";
    ctx.process_group().broadcast_bytes(is_there, 0);
  }
}

void die_if_here(const Plan& plan, muster::Context& ctx, int64_t step, const char* place) {
  if (is_here(plan.kills, ctx, step, place))
    die();
}

std::unique_ptr<torch::optim::Optimizer> make_adamw(const Plan& plan,
                                                    const std::vector<at::Tensor>& parameters) {
  if (plan.optimizer == "muster")
    return std::make_unique<muster::optim::AdamW>(parameters, 0.01);
  return std::make_unique<torch::optim::AdamW>(parameters, 0.01);
}

// Whoever asks it for its state dies in the midst of it, after some collectives of the others.
struct DeadlyPart {
  const Plan& plan;
  muster::Context& ctx;
  int64_t step = 0;
  muster::SavedState state() const {
    die_if_here(plan, ctx, step, "keep");
    if (is_here(plan.slow, ctx, step, "step"))
      std::this_thread::sleep_for(std::chrono::seconds(5));
    return {};
  }
  void load_state(const muster::SavedState&) {}
};

void note_samples(const Plan& plan,
                  muster::Context& ctx,
                  int64_t step,
                  const at::Tensor& features) {
  if (plan.samples.empty())
    return;
  const auto numbers = features.select(1, 3).cpu().contiguous();
  std::ofstream file(plan.samples + "/" + std::to_string(ctx.rank()), std::ios::app);
  for (int64_t i = 0; i < numbers.numel(); ++i)
    file << ctx.env().attempt << " " << step << " "
         << static_cast<int64_t>(numbers.data_ptr<float>()[i]) << "\n";
}

void train_and_print(muster::Context& ctx, const Plan& plan) {
  at::set_num_threads(1);
  std::printf("begin rank %d pid %d generation %d\n", ctx.rank(), ::getpid(), ctx.env().attempt);
  std::fflush(stdout);
  ctx.seed_all(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 16),
                            torch::nn::Dropout(0.5),
                            torch::nn::BatchNorm1d(16),
                            torch::nn::Linear(16, 2));
  net->to(ctx.device());
  const auto made = make_adamw(plan, net->parameters());
  torch::optim::Optimizer& optimizer = *made;
  muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = plan.steps}));
  auto x = torch::randn({64, 4}, at::detail::createCPUGenerator(2));
  x.select(1, 3).copy_(torch::arange(64));  // the sample's number
  auto data = ctx.loader(muster::TensorDataset(x, x.select(1, 0).gt(0).to(torch::kLong)),
                         {.batch_size = 4, .workers = 1});
  torch::manual_seed(static_cast<uint64_t>(100 + ctx.rank()));  // each rank drops others
  DeadlyPart deadly{plan, ctx};
  muster::Ema ema(*net, 0.9);
  muster::Checkpoints checkpoints(
      ctx, {.every = plan.every, .background = plan.background, .in_memory = plan.keep});
  if (plan.divided) {
    const muster::TensorPieces pieces = muster::whole_pieces(*net);
    checkpoints.add("model", pieces).add("optimizer", optimizer, pieces);
  } else {
    checkpoints.add("model", net.ptr()).add("optimizer", optimizer);
  }
  checkpoints.add("schedule", schedule).add("data", data).add("ema", ema).add("deadly", deadly);
  die_if_here(plan, ctx, 0, "restore");
  checkpoints.restore();
  // Without this the Reducer lays the gradients out anew after the first step that it sees, and
  // Gloo, whose sums depend on a number's place, gives other last bits then.
  muster::DistributedDataParallel model(
      net.ptr(), ctx.process_group(), {.find_unused_parameters = true});
  muster::TrainStep step(model, optimizer, {.schedule = &schedule});
  for (const auto& batch : data.steps(plan.steps)) {
    const int64_t done = data.position().step;
    step(batch, [&] {
      auto loss = torch::cross_entropy_loss(model(batch.features / 64), batch.labels);
      if (is_here(plan.kills, ctx, done, "backward")) {
        loss.register_hook([](const at::Tensor&) { die(); });
      }
      return loss;
    });
    ema.update();
    deadly.step = done;
    die_if_here(plan, ctx, done, "step");
    if (is_here(plan.host_kills, ctx, done, "step"))
      kill_host();
    if (is_here(plan.crashes, ctx, done, "step"))
      crash();
    if (is_here(plan.throws, ctx, done, "step"))
      throw std::runtime_error("a bug of its own");
    while (is_here(plan.hangs, ctx, done, "step") && !ctx.stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    note_samples(plan, ctx, done, batch.features);
    if (plan.deaf)
      checkpoints.save_when_due(done);
    else if (checkpoints.save_or_stop(done))
      return;
    if (ctx.rank() == 0)
      std::printf("step %ld at %.6f\n", static_cast<long>(done), now());
    std::fflush(stdout);
    die_if_here(plan, ctx, done, "save");
    while (is_here(plan.stays, ctx, done, "step"))
      ctx.process_group().barrier();
    if (is_here(plan.stays, ctx, done, "go"))
      wait_for_go(ctx);
  }
  checkpoints.finish();
  auto trained = joined(net->parameters(), moments_of(optimizer));
  // Which rank's running statistics a divided checkpoint has is not said.
  if (!plan.divided)
    trained = joined(trained, net->buffers());
  const std::string state = digest_of(trained);
  const auto averages = ema.swap();
  std::printf("end rank %d state %s averages %s next random %a\n",
              ctx.rank(),
              state.c_str(),
              digest_of(net->parameters()).c_str(),
              torch::rand({1}).item<double>());
}

// Of a kill at the very end: the others end after the next generation has been told, which has a
// folder then.
void end_if_here(const Plan& plan, const muster::RankEnv& rank) {
  for (const Kill& kill : plan.kills) {
    if (kill.place != "exit" || kill.generation != rank.attempt)
      continue;
    if (kill.rank == rank.rank)
      die();
    const auto next =
        std::filesystem::path(rank.run_dir) / "logs" / std::to_string(rank.attempt + 1);
    while (!std::filesystem::exists(next))
      ::usleep(1'000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] {
      return std::string(argv[++i]);
    };
    if (flag == "--steps")
      plan.steps = std::stoll(value());
    if (flag == "--every")
      plan.every = std::stoll(value());
    if (flag == "--keep")
      plan.keep = std::stoll(value());
    if (flag == "--background")
      plan.background = true;
    if (flag == "--divided")
      plan.divided = true;
    if (flag == "--deaf")
      plan.deaf = true;
    if (flag == "--optimizer")
      plan.optimizer = value();
    if (flag == "--samples")
      plan.samples = value();
    if (flag == "--kill")
      plan.kills.push_back(kill_of(value()));
    if (flag == "--throw")
      plan.throws.push_back(kill_of(value()));
    if (flag == "--kill-host")
      plan.host_kills.push_back(kill_of(value()));
    if (flag == "--stay")
      plan.stays.push_back(kill_of(value()));
    if (flag == "--crash")
      plan.crashes.push_back(kill_of(value()));
    if (flag == "--slow")
      plan.slow.push_back(kill_of(value()));
    if (flag == "--hang")
      plan.hangs.push_back(kill_of(value()));
  }
  // Before the ranks of the generation have met.
  const auto rank = muster::rank_env_from_environment();
  for (const Kill& kill : plan.kills) {
    if (rank && kill.place == "join" && kill.rank == rank->rank && kill.generation == rank->attempt)
      std::raise(SIGKILL);
  }
  const int code =
      muster::run(argc, argv, [&](muster::Context& ctx) { train_and_print(ctx, plan); });
  if (rank)
    end_if_here(plan, *rank);
  return code;
}
