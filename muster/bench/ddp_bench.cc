#include "muster/bench/ddp_bench.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/bench/bench_models.h"
#include "muster/bench/bench_results.h"
#include "muster/comm/init.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/run/run.h"

namespace muster {

namespace {

constexpr int kWarmUpSteps = 3;

using Json = nlohmann::json;

// One kind of training: alone, or over a backend with or without views of the buckets.
class Kind {
 public:
  Kind(Context& ctx, const DdpBenchOptions& options, const std::string& backend, bool view)
      : name_(backend.empty() ? "none" : cat(backend, view ? "" : ", copied")) {
    torch::manual_seed(0);
    model_ = make_bench_model(options.model);
    model_->to(ctx.device());
    optimizer_.emplace(model_->parameters(), torch::optim::SGDOptions(1e-4));
    inputs_ = model_->make_inputs(options.batch).to(ctx.device());
    labels_ = torch::randint(model_->labels, {options.batch * model_->rows_of_sample}, torch::kLong)
                  .to(ctx.device());
    if (backend.empty()) return;
    const auto store = c10::make_intrusive<c10d::PrefixStore>("bench/" + name_, ctx.store());
    group_ =
        init_process_group(store, ctx.rank(), ctx.world_size(), {.backend = backend, .device = ctx.device()});
    ddp_ = std::make_unique<DistributedDataParallel<std::shared_ptr<BenchModel>>>(
        model_, *group_, DdpOptions{.gradient_as_bucket_view = view});
  }

  void step() {
    optimizer_->zero_grad();
    const auto outputs = ddp_ ? ddp_->forward(inputs_) : model_->forward(inputs_);
    const auto loss = torch::cross_entropy_loss(outputs, labels_);
    loss.backward();
    optimizer_->step();
    last_loss_ = loss.item<double>();
  }

  // Milliseconds: the median of the steps, of the slowest rank. All ranks start each step together.
  double time(ProcessGroup& control, int steps) {
    for (int i = 0; i < kWarmUpSteps; ++i) step();
    std::vector<double> times;
    for (int i = 0; i < steps; ++i) {
      control.barrier();
      const auto start = Clock::now();
      step();
      times.push_back(seconds_since(start) * 1e3);
    }
    std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
    auto slowest = torch::tensor({times[static_cast<size_t>(steps / 2)]}, at::kDouble);
    control.all_reduce(slowest, ReduceOp::max);
    return slowest.item<double>();
  }

  void leave() {
    ddp_.reset();
    if (group_) group_->shutdown();
  }

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::shared_ptr<BenchModel> model_;
  std::optional<torch::optim::SGD> optimizer_;
  at::Tensor inputs_, labels_;
  std::optional<ProcessGroup> group_;
  std::unique_ptr<DistributedDataParallel<std::shared_ptr<BenchModel>>> ddp_;
  double last_loss_ = 0;
};

std::vector<std::unique_ptr<Kind>> kinds_here(Context& ctx, const DdpBenchOptions& options) {
  std::vector<std::unique_ptr<Kind>> kinds;
  kinds.push_back(std::make_unique<Kind>(ctx, options, "", true));
  std::vector<std::string> backends = {"gloo", "shm"};
  if (ctx.process_group().backend() == "nccl") backends = {"nccl"};
  for (const std::string& backend : backends) {
    for (const bool view : {false, true})
      kinds.push_back(std::make_unique<Kind>(ctx, options, backend, view));
  }
  return kinds;
}

void measure_steps(Context& ctx, const DdpBenchOptions& options) {
  auto kinds = kinds_here(ctx, options);
  Json times = Json::array();
  for (const auto& kind : kinds)
    times.push_back({{"kind", kind->name()}, {"ms", kind->time(ctx.process_group(), options.steps)}});
  for (const auto& kind : kinds) kind->leave();
  if (ctx.is_main()) leave_results(times.dump());
}

// The least of what the rounds found, in the order of the first.
class Best {
 public:
  void add(const std::string& kind, double ms) {
    const auto found =
        std::find_if(times_.begin(), times_.end(), [&](const auto& t) { return t.first == kind; });
    if (found == times_.end()) {
      times_.emplace_back(kind, ms);
    } else {
      found->second = std::min(found->second, ms);
    }
  }

  void add_all(const std::string& results) {
    for (const Json& one : Json::parse(results)) add(one["kind"], one["ms"]);
  }

  double of(const std::string& kind) const {
    return std::find_if(times_.begin(), times_.end(), [&](const auto& t) { return t.first == kind; })->second;
  }

  const std::vector<std::pair<std::string, double>>& times() const { return times_; }

 private:
  std::vector<std::pair<std::string, double>> times_;
};

// What a kind's step is compared with: the same language's without communication.
std::string baseline_of(const std::string& kind) {
  return kind.starts_with("Python") ? "Python, none" : "none";
}

void print_table(const Best& best, const DdpBenchOptions& options) {
  std::printf("# a step of %s, batch %ld a rank, %d ranks; least of %d medians\n", options.model.c_str(),
              static_cast<long>(options.batch), options.ranks, options.rounds);
  std::printf("%-22s %10s %14s %14s\n", "", "ms", "ms beyond none", "ratio to none");
  for (const auto& [kind, ms] : best.times()) {
    const double none = best.of(baseline_of(kind));
    std::printf("%-22s %10.2f %14.2f %14.3f\n", kind.c_str(), ms, ms - none, ms / none);
  }
  std::fflush(stdout);
}

std::string as_json(const Best& best, const DdpBenchOptions& options) {
  Json kinds = Json::object();
  for (const auto& [kind, ms] : best.times()) kinds[kind] = ms;
  return Json{{"schema", "muster.bench_ddp/1"},
              {"model", options.model},
              {"batch", options.batch},
              {"ranks", options.ranks},
              {"ms", kinds}}
      .dump(2);
}

// Beside this program.
std::string python_script() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "python_ddp.py";
}

}  // namespace

int bench_ddp(DdpBenchOptions options, int argc, char** argv) {
  if (options.batch == 0) options.batch = default_batch(options.model);
  if (!is_bench_rank()) make_bench_model(options.model);  // or says what is wrong with the name
  const auto measure = [&](Context& ctx) { measure_steps(ctx, options); };
  if (is_bench_rank()) {
    int exit_code = 0;
    for (int round = 0; round < options.rounds; ++round)  // a rank comes to the call that it was started for
      exit_code = run_bench(options.ranks, argc, argv, measure).exit_code;
    return exit_code;
  }
  Best best;
  for (int round = 0; round < options.rounds; ++round) {
    log(LogLevel::info, cat("round ", round + 1, " of ", options.rounds, ": ", options.model, ", batch ",
                            options.batch, ", ", options.ranks, " ranks"));
    if (!options.python.empty()) {
      const BenchRun python = run_bench_program(
          options.ranks,
          {options.python, "-u", python_script(), options.model, cat(options.batch), cat(options.steps)});
      if (python.exit_code != 0) return python.exit_code;
      best.add_all(python.results);
    }
    const BenchRun ours = run_bench(options.ranks, argc, argv, measure);
    if (ours.exit_code != 0) return ours.exit_code;
    best.add_all(ours.results);
  }
  if (options.json) {
    std::cout << as_json(best, options) << std::endl;
  } else {
    print_table(best, options);
  }
  return 0;
}

}  // namespace muster
