// Pipelines of 4 ranks over shared memory.
//
//   pipeline_bench bubble [MS]  stages that sleep MS (20) instead of computing: the idle time by
//                               theory's, for sleeps of MS, and of what they took: the kernel wakes
//                               a sleeper late
//   pipeline_bench steps [N]    a step of 4 stages of two layers each; pipeline_bench.py has
//                               PyTorch's beside it
#include <muster/muster.h>
#include <muster/parallel/pipeline/simulation.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 4;

// F, I and W each. It should be long beside what a busy machine adds to a sleep and to a message.
std::chrono::milliseconds sleep_time{20};

// What this rank's sleeps took.
std::atomic<int64_t> slept_nanoseconds{0}, sleeps{0};

void sleep_counted(int64_t milliseconds) {
  if (milliseconds == 0)
    return;
  const auto start = muster::Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  slept_nanoseconds += static_cast<int64_t>(muster::seconds_since(start) * 1e9);
  ++sleeps;
}

// The identity, which takes its time.
struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x,
                            int64_t now,
                            int64_t later) {
    ctx->saved_data["ms"] = later;
    sleep_counted(now);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    sleep_counted(ctx->saved_data["ms"].toInt());
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

// The input's gradient takes one time, the weight's another.
struct SleeperImpl : torch::nn::Module {
  explicit SleeperImpl(int parts)
      : parts(parts), weight(register_parameter("weight", torch::zeros({4}))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto slow = Sleep::apply(x.requires_grad() ? x : x.detach().requires_grad_(),
                                   sleep_time.count() / parts,
                                   sleep_time.count() / parts);
    return slow + Sleep::apply(weight, 0, sleep_time.count() / parts);
  }
  int parts;
  at::Tensor weight;
};
TORCH_MODULE(Sleeper);

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

at::Tensor mean_of(const at::Tensor& output, const at::Tensor& /*target*/) {
  return output.mean();
}

// Mean over the ranks. Units: seconds.
double mean_sleep(muster::ProcessGroup& group) {
  const at::Tensor mean =
      torch::full({1}, 1e-9 * static_cast<double>(slept_nanoseconds), torch::kDouble);
  mean.div_(static_cast<double>(sleeps));
  group.all_reduce(mean, muster::ReduceOp::avg);
  return mean.item<double>();
}

// F, I and W of `each` seconds.
muster::PipelineTimeline timeline_of(const muster::PipelineSchedule& schedule, double each) {
  return muster::simulate(
      schedule, {.forward = each, .backward = 2 * each, .input_grad = each, .weight_grad = each});
}

// How long nothing is done in a step of `took` seconds, by theory's.
double idle_ratio(const muster::PipelineTimeline& theory, double took) {
  return (took - theory.total + theory.bubble()) / theory.bubble();
}

void measure_bubble(muster::Context& ctx, const muster::PipelineSchedule& schedule) {
  const int parts = schedule.stages_per_rank();
  std::vector<muster::PipelineStage> stages;
  for (int i = 0; i < parts; ++i)
    stages.emplace_back(Sleeper(parts));
  muster::Pipeline pipeline(
      std::move(stages), ctx.process_group(), {.schedule = schedule, .loss = mean_of});
  const auto x = torch::zeros({schedule.micro_batches, 4});
  std::vector<double> took;
  slept_nanoseconds = sleeps = 0;
  for (int step = 0; step < 4; ++step) {
    ctx.process_group().barrier();
    const auto start = muster::Clock::now();
    pipeline.step(x, x);
    ctx.process_group().barrier();
    if (step > 0)
      took.push_back(muster::seconds_since(start));  // the first makes channels
  }
  const double each = 1e-3 * static_cast<double>(sleep_time.count()) / parts;
  const double as_slept = mean_sleep(ctx.process_group());
  const muster::PipelineTimeline theory = timeline_of(schedule, each);
  if (ctx.is_main())
    std::printf("%-12s %8.1f %8.1f %9.3f %10.3f %9.3f\n",
                schedule.name.c_str(),
                median(took) * 1e3,
                theory.total * 1e3,
                idle_ratio(theory, median(took)),
                (as_slept - each) * 1e3,
                idle_ratio(timeline_of(schedule, as_slept), median(took)));
}

void measure_bubbles(muster::Context& ctx) {
  constexpr int kMicroBatches = 8;
  if (ctx.is_main()) {
    std::printf(
        "# %d ranks, %d micro-batches, stages that sleep %d ms for each of F, I and W; medians of "
        "3 steps\n"
        "# idle time ÷ theory's; how late sleepers wake; the same with theory's sleeps as long as "
        "they "
        "took\n",
        kRanks,
        kMicroBatches,
        static_cast<int>(sleep_time.count()));
    std::printf(
        "%-12s %8s %8s %9s %10s %9s\n", "schedule", "step ms", "theory", "idle", "late ms", "idle");
  }
  for (const auto& schedule : {muster::gpipe(kRanks, kMicroBatches),
                               muster::one_f_one_b(kRanks, kMicroBatches),
                               muster::interleaved(kRanks, kMicroBatches, 2),
                               muster::zero_bubble(kRanks, kMicroBatches)})
    measure_bubble(ctx, schedule);
}

// pipeline_bench.py's numbers.
constexpr int64_t kWidth = 256, kRows = 256;
constexpr int kMicroBatches = 8;

void measure_steps(muster::Context& ctx, int steps) {
  using torch::nn::Linear, torch::nn::Sequential, torch::nn::Tanh;
  for (const auto& schedule : {muster::gpipe(kRanks, kMicroBatches),
                               muster::one_f_one_b(kRanks, kMicroBatches),
                               muster::zero_bubble(kRanks, kMicroBatches)}) {
    torch::manual_seed(ctx.rank());
    Sequential stage(Linear(kWidth, kWidth), Tanh(), Linear(kWidth, kWidth), Tanh());
    muster::Pipeline pipeline(
        {stage},
        ctx.process_group(),
        {.schedule = schedule, .loss = [](const at::Tensor& out, const at::Tensor& y) {
           return torch::mse_loss(out, y);
         }});
    torch::optim::SGD optimizer(pipeline.parameters(), 0.01);
    const auto x = torch::randn({kRows, kWidth}), y = torch::randn({kRows, kWidth});
    std::vector<double> took;
    for (int step = 0; step < steps; ++step) {
      ctx.process_group().barrier();
      const auto start = muster::Clock::now();
      optimizer.zero_grad();
      pipeline.step(x, y);
      optimizer.step();
      ctx.process_group().barrier();
      if (step >= steps / 5)
        took.push_back(muster::seconds_since(start));
    }
    if (ctx.is_main())
      std::printf("%s %.3f ms a step\n", schedule.name.c_str(), median(took) * 1e3);
  }
}

void measure(muster::Context& ctx, const std::string& what, int argument) {
  at::set_num_threads(1);
  if (ctx.world_size() != kRanks) {
    throw muster::Error(muster::ErrorCode::invalid_argument,
                        muster::cat("pipeline_bench: expected ",
                                    kRanks,
                                    " ranks, got ",
                                    ctx.world_size(),
                                    "; muster run -n 4 --cpu-slots 4"));
  }
  if (argument > 0 && what == "bubble")
    sleep_time = std::chrono::milliseconds(argument);
  if (what == "bubble")
    return measure_bubbles(ctx);
  measure_steps(ctx, argument > 0 ? std::max(10, argument) : 100);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "bubble";
  const int argument = argc > 2 ? std::atoi(argv[2]) : 0;
  return muster::run(argc, argv, [&](muster::Context& ctx) { measure(ctx, what, argument); });
}
