#include "muster/bench/collectives_bench.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "muster/base/clock.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/bench/bench_results.h"
#include "muster/comm/init.h"

namespace muster {

namespace {

constexpr int kWarmUps = 3;
constexpr int kLeastCalls = 5;
constexpr int kMostCalls = 2'000;

at::ScalarType type_named(const std::string& name) {
  const std::map<std::string, at::ScalarType> types = {{"float32", at::kFloat},
                                                       {"float64", at::kDouble},
                                                       {"bfloat16", at::kBFloat16},
                                                       {"float16", at::kHalf},
                                                       {"int32", at::kInt},
                                                       {"int64", at::kLong}};
  const auto found = types.find(name);
  if (found == types.end()) {
    throw Error(ErrorCode::invalid_argument,
                cat("--dtype: expected float32, float64, bfloat16, float16, int32 or int64, got '",
                    name,
                    "'"));
  }
  return found->second;
}

// One operation on one backend, of one size: its tensors, and what they must hold afterwards. Small
// whole numbers, so that sums are exact in every type.
class Case {
 public:
  Case(
      ProcessGroup& group, const std::string& op, bool in_place, at::ScalarType type, int64_t count)
      : group_(group), op_(op), type_(type) {
    const int64_t ranks = group.size();
    const auto make = [&](int64_t elements) {
      if (in_place)
        return group.c10d()->getDefaultBackend()->allocateTensor(elements, type);
      return torch::empty({elements}, torch::TensorOptions(type).device(group.device()));
    };
    const bool many_in = op == "reduce_scatter" || op == "all_to_all";
    const bool many_out = op == "all_gather" || op == "all_to_all";
    in_ = make(many_in ? count * ranks : count);
    out_ = op == "all_reduce" || op == "broadcast" ? in_ : make(many_out ? count * ranks : count);
  }

  // As a step would: the owner writes what goes in, just before.
  void fill() { in_.fill_(group_.rank() + 1); }

  void run() {
    if (op_ == "all_reduce")
      group_.all_reduce(in_);
    if (op_ == "broadcast")
      group_.broadcast(in_, 0);
    if (op_ == "all_gather")
      group_.all_gather(out_, in_);
    if (op_ == "reduce_scatter")
      group_.reduce_scatter(out_, in_);
    if (op_ == "all_to_all")
      group_.all_to_all(out_, in_);
  }

  int64_t wrong() const {
    const int64_t ranks = group_.size();
    if (op_ == "broadcast")
      return out_.ne(1).sum().item<int64_t>();
    if (op_ == "all_gather" || op_ == "all_to_all") {
      const auto senders =
          torch::arange(1, ranks + 1, torch::TensorOptions(type_).device(group_.device()));
      return out_.view({ranks, -1}).ne(senders.unsqueeze(1)).sum().item<int64_t>();
    }
    return out_.ne(ranks * (ranks + 1) / 2).sum().item<int64_t>();
  }

 private:
  ProcessGroup& group_;
  std::string op_;
  at::ScalarType type_;
  at::Tensor in_, out_;
};

double median_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// Microseconds: the median over calls, all ranks starting together; of the slowest rank.
double time_of(
    Case& one, ProcessGroup& group, ProcessGroup& control, double seconds, int64_t& wrong) {
  for (int i = 0; i < kWarmUps; ++i) {
    one.fill();
    one.run();
  }
  wrong += one.wrong();
  std::vector<double> times;
  const auto begun = Clock::now();
  for (bool more = true; more;) {
    one.fill();
    if (group.device().is_cuda())
      torch::cuda::synchronize();
    control.barrier();
    const auto start = Clock::now();
    one.run();
    if (group.device().is_cuda())
      torch::cuda::synchronize();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    const int calls = static_cast<int>(times.size());
    more = calls < kLeastCalls || (calls < kMostCalls && seconds_since(begun) < seconds);
    if (calls >= kLeastCalls) {  // rank 0 says, for all
      auto again = torch::tensor({more ? 1 : 0});
      control.broadcast(again, 0);
      more = again.item<int>() != 0;
    }
  }
  wrong += one.wrong();
  auto slowest = torch::tensor({median_of(times)}, at::kDouble);
  control.all_reduce(slowest, ReduceOp::max);
  return slowest.item<double>();
}

struct Contestant {
  std::string name;
  ProcessGroup group;
  bool in_place;
};

std::vector<std::string> backends_here(Context& ctx) {
  std::vector<std::string> all = {"gloo"};
  if (ctx.local_world_size() < ctx.world_size()) {
    all.emplace_back("shm+gloo");
  } else {
    all.emplace_back("shm");
    if (!ctx.device().is_cuda())
      all.emplace_back("shm-in-place");
  }
  if (ctx.process_group().backend() == "nccl")
    all.emplace_back("nccl");
  if (get_env("OMPI_COMM_WORLD_SIZE") || get_env("PMI_RANK"))
    all.emplace_back("mpi");
  return all;
}

std::vector<Contestant> contestants(Context& ctx, const CollectivesBenchOptions& options) {
  std::vector<Contestant> all;
  for (const std::string& name : options.backends.empty() ? backends_here(ctx) : options.backends) {
    const bool in_place = name == "shm-in-place";
    const auto store = c10::make_intrusive<c10d::PrefixStore>("bench/" + name, ctx.store());
    all.push_back(
        {.name = name,
         .group = init_process_group(store,
                                     ctx.rank(),
                                     ctx.world_size(),
                                     {.backend = in_place ? "shm" : name, .device = ctx.device()}),
         .in_place = in_place});
  }
  return all;
}

void print_row(const CollectiveTime& row, const std::string& dtype) {
  std::printf("%12ld %12ld %9s %-13s %11.1f %8.3f %8.3f %6ld\n",
              static_cast<long>(row.bytes),
              static_cast<long>(row.count),
              dtype.c_str(),
              row.backend.c_str(),
              row.us,
              row.algbw,
              row.busbw,
              static_cast<long>(row.wrong));
  std::fflush(stdout);
}

std::string to_json(const std::vector<CollectiveTime>& rows,
                    const CollectivesBenchOptions& options) {
  nlohmann::json list = nlohmann::json::array();
  for (const CollectiveTime& row : rows) {
    list.push_back({{"backend", row.backend},
                    {"bytes", row.bytes},
                    {"count", row.count},
                    {"us", row.us},
                    {"algbw", row.algbw},
                    {"busbw", row.busbw},
                    {"wrong", row.wrong}});
  }
  return nlohmann::json{{"schema", "muster.bench_collectives/1"},
                        {"op", options.op},
                        {"dtype", options.dtype},
                        {"ranks", options.ranks},
                        {"rows", list}}
      .dump(2);
}

void measure(Context& ctx, const CollectivesBenchOptions& options) {
  const at::ScalarType type = type_named(options.dtype);
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  auto groups = contestants(ctx, options);
  std::vector<CollectiveTime> rows;
  if (ctx.is_main() && !options.json) {
    std::printf(
        "# %s, %d ranks on %s; us: least of %d medians, of the slowest rank; bandwidths in GB/s\n",
        options.op.c_str(),
        ctx.world_size(),
        ctx.device().str().c_str(),
        options.rounds);
    std::printf("%12s %12s %9s %-13s %11s %8s %8s %6s\n",
                "bytes",
                "count",
                "type",
                "backend",
                "us",
                "algbw",
                "busbw",
                "wrong");
  }
  for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    const int64_t count = std::max<int64_t>(1, bytes / element);
    std::vector<CollectiveTime> best;
    std::vector<Case> cases;
    for (Contestant& contestant : groups) {
      cases.emplace_back(contestant.group, options.op, contestant.in_place, type, count);
      best.push_back(
          {.backend = contestant.name, .bytes = count * element, .count = count, .us = 1e18});
    }
    for (int round = 0; round < options.rounds; ++round) {
      for (size_t i = 0; i < groups.size(); ++i) {
        best[i].us = std::min(best[i].us,
                              time_of(cases[i],
                                      groups[i].group,
                                      ctx.process_group(),
                                      options.seconds / options.rounds,
                                      best[i].wrong));
      }
    }
    for (CollectiveTime& row : best) {
      auto wrong = torch::tensor({row.wrong});
      ctx.process_group().all_reduce(wrong);
      row.wrong = wrong.item<int64_t>();
      row.algbw = static_cast<double>(row.bytes) / row.us / 1e3;
      row.busbw = row.algbw * bus_factor(options.op, ctx.world_size());
      if (ctx.is_main() && !options.json)
        print_row(row, options.dtype);
      rows.push_back(row);
    }
  }
  for (Contestant& contestant : groups)
    contestant.group.shutdown();
  if (ctx.is_main())
    leave_results(to_json(rows, options));
  if (ctx.is_main() && !options.svg.empty())
    write_file(
        options.svg,
        draw_times(rows, cat(options.op, ", ", ctx.world_size(), " ranks, ", options.dtype)));
  for (const CollectiveTime& row : rows) {
    if (row.wrong == 0)
      continue;
    throw Error(ErrorCode::backend_failed,
                cat(options.op,
                    ": expected the right result, got ",
                    row.wrong,
                    " wrong elements of ",
                    row.count,
                    " over ",
                    row.backend));
  }
}

void check(const CollectivesBenchOptions& options) {
  const std::vector<std::string> ops = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"};
  if (std::find(ops.begin(), ops.end(), options.op) == ops.end()) {
    throw Error(ErrorCode::invalid_argument,
                cat("--op: expected ", join(ops, ", "), ", got '", options.op, "'"));
  }
  for (const std::string& backend : options.backends) {
    const std::vector<std::string> known = {
        "gloo", "shm", "shm-in-place", "shm+gloo", "nccl", "mpi"};
    if (std::find(known.begin(), known.end(), backend) == known.end()) {
      throw Error(ErrorCode::invalid_argument,
                  cat("--backends: expected ", join(known, ", "), ", got '", backend, "'"));
    }
  }
  if (options.min_bytes > options.max_bytes) {
    throw Error(ErrorCode::invalid_argument,
                cat("--min: expected no more than --max (",
                    options.max_bytes,
                    "), got ",
                    options.min_bytes));
  }
  type_named(options.dtype);
  if (options.svg.empty())
    return;
  const auto folder = std::filesystem::absolute(options.svg).parent_path();
  if (::access(folder.c_str(), W_OK) != 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("--svg: expected a folder that can be written, got '",
                    folder.string(),
                    "': ",
                    std::strerror(errno)));
  }
}

}  // namespace

double bus_factor(const std::string& op, int ranks) {
  const double n = ranks;
  if (op == "all_reduce")
    return 2 * (n - 1) / n;
  if (op == "broadcast")
    return 1;
  return (n - 1) / n;
}

int bench_collectives(const CollectivesBenchOptions& options, int argc, char** argv) {
  check(options);
  const BenchRun done =
      run_bench(options.ranks, argc, argv, [&](Context& ctx) { measure(ctx, options); });
  if (options.json && !done.results.empty())
    std::cout << done.results << std::endl;
  return done.exit_code;
}

}  // namespace muster
