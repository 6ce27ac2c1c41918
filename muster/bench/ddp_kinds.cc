// Each kind's model trains on the same data. A step's time is taken between two moments at which no
// rank computes: a barrier before it, and the loss that is read after it. Rounds below 0 warm up,
// for DDP builds its buckets anew after the first step.
#include "muster/bench/ddp_kinds.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/bench/bench_models.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/init.h"
#include "muster/ddp/distributed_data_parallel.h"

namespace muster {

namespace {

constexpr int kWarmUpSteps = 3;
constexpr std::string_view kCopied = "-copied";

// The cap of buckets that follows the colon: 4 MiB in "shm:4", the best that DDP finds in
// "shm:auto", and DDP's default in "shm".
BucketCap bucket_cap_of(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == npos)
    return {};
  const auto cap = name.substr(colon + 1);
  return cap == "auto" ? BucketCap::automatic() : BucketCap(std::stod(cap));
}

// One kind's model, optimizer and, unless it is "none", process group and DDP. All kinds begin with
// equal weights and compute on equal data, of which each rank has its own.
class Kind {
 public:
  Kind(Context& ctx, const DdpBenchOptions& options, const std::string& name) {
    torch::manual_seed(0);
    model_ = make_bench_model(options.model);
    model_->to(ctx.device());
    optimizer_.emplace(model_->parameters(), torch::optim::SGDOptions(1e-4));
    torch::manual_seed(1 + ctx.rank());
    inputs_ = model_->make_inputs(options.batch).to(ctx.device());
    labels_ = torch::randint(model_->labels, {options.batch * model_->rows_of_sample}, kLong)
                  .to(ctx.device());
    if (name == kNoCommunication)
      return;
    std::string backend = name.substr(0, name.find(':'));
    const bool copied = backend.ends_with(kCopied);
    if (copied)
      backend.erase(backend.size() - kCopied.size());
    const auto store = store_part(ctx.store(), "bench/" + name);
    group_ = init_process_group(
        store, ctx.rank(), ctx.world_size(), {.backend = backend, .device = ctx.device()});
    ddp_ = std::make_unique<DistributedDataParallel<std::shared_ptr<BenchModel>>>(
        model_,
        *group_,
        DdpOptions{.bucket_cap_mb = bucket_cap_of(name), .gradient_as_bucket_view = !copied});
  }

  // Reading the loss waits until a GPU has done all of the step.
  void step() {
    optimizer_->zero_grad();
    const auto outputs = ddp_ ? ddp_->forward(inputs_) : model_->forward(inputs_);
    const auto loss = torch::cross_entropy_loss(outputs, labels_);
    loss.backward();
    optimizer_->step();
    last_loss_ = loss.item<double>();
  }

  // Collective over the kind's group.
  void leave() {
    ddp_.reset();
    if (group_)
      group_->shutdown();
  }

 private:
  std::shared_ptr<BenchModel> model_;
  std::optional<torch::optim::SGD> optimizer_;
  at::Tensor inputs_, labels_;
  std::optional<ProcessGroup> group_;
  std::unique_ptr<DistributedDataParallel<std::shared_ptr<BenchModel>>> ddp_;
  double last_loss_ = 0;
};

// Returns the order of the kinds in a round: the same on every rank, and another in every round. A
// kind that always came after the same one would find that one's data in the caches.
Indices order_of_round(size_t kinds, int round) {
  Indices order = numbers_below(kinds);
  std::mt19937 random(round);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// Milliseconds that all threads of this process together have computed.
double processor_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

// The kinds that are measured, the baseline first, each once.
Strings kinds_of(const DdpBenchOptions& options, bool by_nccl) {
  if (options.kinds.empty())
    return ddp_kind_names(by_nccl);
  Strings kinds = {kNoCommunication};
  append_all(kinds, options.kinds);
  return distinct(kinds);
}

// Takes a tensor [round, kind] apart.
PairedTimes paired(const Strings& kinds, const at::Tensor& times) {
  PairedTimes found{.kinds = kinds, .rounds = {}};
  for (int64_t round = 0; round < times.size(0); ++round) {
    const at::Tensor row = times[round].contiguous();
    found.rounds.emplace_back(row.data_ptr<double>(), row.data_ptr<double>() + row.numel());
  }
  return found;
}

}  // namespace

Strings ddp_kind_names(bool by_nccl) {
  if (by_nccl)
    return {kNoCommunication, "nccl", "nccl-copied"};
  return {kNoCommunication, "gloo", "gloo-copied", "shm", "shm-copied"};
}

// Each rank's times are its own until the end: the slowest rank's count, and the sum of processors.
DdpTimes measure_ddp_kinds(Context& ctx, const DdpBenchOptions& options) {
  ProcessGroup& control = ctx.process_group();
  const auto names = kinds_of(options, control.backend() == "nccl");
  std::vector<std::unique_ptr<Kind>> kinds;
  for (const auto& name : names)
    kinds.push_back(std::make_unique<Kind>(ctx, options, name));
  auto wall = torch::zeros({options.steps, std::ssize(kinds)}, kDouble);
  auto processor = torch::zeros_like(wall);
  for (int round = -kWarmUpSteps; round < options.steps; ++round) {
    for (const size_t kind : order_of_round(kinds.size(), round)) {
      control.barrier();  // all ranks start each step together
      const auto start = Clock::now();
      const double used = processor_ms();
      kinds[kind]->step();
      if (round < 0)
        continue;
      wall.accessor<double, 2>()[round][kind] = seconds_since(start) * 1e3;
      processor.accessor<double, 2>()[round][kind] = processor_ms() - used;
    }
  }
  control.all_reduce(wall, ReduceOp::max);
  control.all_reduce(processor, ReduceOp::sum);
  for (const auto& kind : kinds)
    kind->leave();
  return {.wall = paired(names, wall), .processor = paired(names, processor)};
}

}  // namespace muster
