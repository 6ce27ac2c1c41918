// `muster bench collectives`: every size is one round robin. The backends that are compared each
// have a group of their own over the same ranks; a contestant's case (its tensors of one size) is
// timed in several rounds, in which the backends take turns, so that a busy moment of the machine
// does not fall on one of them alone. The job's own group starts the ranks together and collects
// what they measured. Rank 0 prints the rows as they come.
#include "muster/bench/collectives_bench.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/named_file.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/bench/bench_results.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/init.h"

namespace muster {

namespace {

constexpr int kWarmUps = 3;
constexpr int kLeastCalls = 5;
constexpr int kMostCalls = 2'000;

// Throws: invalid_argument for a type that is none of these.
ScalarType type_named(const std::string& name) {
  const std::map<std::string, ScalarType> types = {{"float32", kFloat},
                                                   {"float64", kDouble},
                                                   {"bfloat16", kBFloat16},
                                                   {"float16", kHalf},
                                                   {"int32", kInt},
                                                   {"int64", kLong}};
  if (const ScalarType* const type = value_at(types, name))
    return *type;
  throw invalid_argument(
      "--dtype: expected float32, float64, bfloat16, float16, int32 or int64, got '", name, "'");
}

// One operation on one backend, of one size: its tensors, and what they must hold afterwards. The
// values are small whole numbers, so that sums are exact in every type.
class Case {
 public:
  Case(ProcessGroup& group, const std::string& op, bool in_place, ScalarType type, int64_t count)
      : group_(group), op_(op), type_(type) {
    const int64_t all = count * group.size();
    const bool many_in = op == "reduce_scatter" || op == "all_to_all";
    const bool many_out = op == "all_gather" || op == "all_to_all";
    const bool same = op == "all_reduce" || op == "broadcast";
    in_ = make(many_in ? all : count, in_place);
    out_ = same ? in_ : make(many_out ? all : count, in_place);
  }

  // The owner writes the inputs just before the call, as a training step would.
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

  // Returns the number of elements that are not what the last run() had to make of them.
  int64_t wrong() const {
    const int64_t ranks = group_.size();
    if (op_ == "broadcast")
      return count_true(out_.ne(1));
    if (op_ == "all_gather" || op_ == "all_to_all") {
      const auto senders = torch::arange(1, ranks + 1, tensor_options());
      return count_true(out_.view({ranks, -1}).ne(senders.unsqueeze(1)));
    }
    return count_true(out_.ne(ranks * (ranks + 1) / 2));
  }

 private:
  torch::TensorOptions tensor_options() const {
    return torch::TensorOptions(type_).device(group_.device());
  }

  at::Tensor make(int64_t elements, bool in_place) const {
    if (in_place)
      return group_.c10d()->getDefaultBackend()->allocateTensor(elements, type_);
    return torch::empty({elements}, tensor_options());
  }

  static int64_t count_true(const at::Tensor& flags) { return flags.sum().item<int64_t>(); }

  ProcessGroup& group_;
  std::string op_;
  ScalarType type_;
  at::Tensor in_, out_;
};

// A call on a GPU returns before the GPU has done it.
void wait_for_gpu(const ProcessGroup& group) {
  if (group.device().is_cuda())
    torch::cuda::synchronize();
}

// Rank 0 decides for all whether there is another call, for the ranks' clocks may differ.
bool decided_by_rank_0(ProcessGroup& control, bool more) {
  auto again = torch::tensor({more ? 1 : 0});
  control.broadcast(again, 0);
  return again.item<int>() != 0;
}

// Microseconds of one call. All ranks start it together.
double time_of_call(Case& one, ProcessGroup& group, ProcessGroup& control) {
  one.fill();
  wait_for_gpu(group);
  control.barrier();
  const auto start = Clock::now();
  one.run();
  wait_for_gpu(group);
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The median is of an even number of values the greater of the two in the middle.
double median_of(Doubles values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Microseconds: the median over this rank's calls, of the slowest rank. Adds to `wrong`.
double time_of(
    Case& one, ProcessGroup& group, ProcessGroup& control, double seconds, int64_t& wrong) {
  for (int i = 0; i < kWarmUps; ++i) {
    one.fill();
    one.run();
  }
  wrong += one.wrong();
  Doubles times;
  const auto begun = Clock::now();
  const auto has_time = [&] {
    return std::ssize(times) < kMostCalls && seconds_since(begun) < seconds;
  };
  while (std::ssize(times) < kLeastCalls || decided_by_rank_0(control, has_time()))
    times.push_back(time_of_call(one, group, control));
  wrong += one.wrong();
  auto slowest = torch::tensor({median_of(times)}, kDouble);
  control.all_reduce(slowest, ReduceOp::max);
  return slowest.item<double>();
}

struct Contestant {
  std::string name;
  ProcessGroup group;
  bool in_place;
};

// The backends that these ranks can use, in the order of the table.
Strings backends_here(Context& ctx) {
  Strings all = {"gloo"};
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

// Collective. Each contestant's group meets under a prefix of its own in the job's store.
std::vector<Contestant> contestants(Context& ctx, const CollectivesBenchOptions& options) {
  std::vector<Contestant> all;
  for (const auto& name : options.backends.empty() ? backends_here(ctx) : options.backends) {
    const bool in_place = name == "shm-in-place";
    const auto store = store_part(ctx.store(), "bench/" + name);
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

void print_head(Context& ctx, const CollectivesBenchOptions& options) {
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

// Each row is flushed, since large sizes take a while.
void print_row(const CollectiveTime& row, const std::string& dtype) {
  std::printf("%12ld %12ld %9s %-13s %11.1f %8.3f %8.3f %6ld\n",
              row.bytes,
              row.count,
              dtype.c_str(),
              row.backend.c_str(),
              row.us,
              row.algbw,
              row.busbw,
              row.wrong);
  std::fflush(stdout);
}

// The rows have the same columns as the table.
std::string to_json(const CollectiveTimes& rows, const CollectivesBenchOptions& options) {
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

// Returns by what algbw is multiplied to become busbw. Source: nccl-tests PERFORMANCE.md.
double bus_factor(const std::string& op, int ranks) {
  const double n = ranks;
  if (op == "all_reduce")
    return 2 * (n - 1) / n;
  if (op == "broadcast")
    return 1;
  return (n - 1) / n;
}

// Collective. Returns a row for each contestant: the least of its rounds' times. A rank's part has
// as many elements as fit into `most_bytes`, and at least one.
CollectiveTimes measure_size(Context& ctx,
                             const CollectivesBenchOptions& options,
                             std::vector<Contestant>& all,
                             int64_t most_bytes) {
  const ScalarType type = type_named(options.dtype);
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  const int64_t count = std::max<int64_t>(1, most_bytes / element);
  ProcessGroup& control = ctx.process_group();
  CollectiveTimes rows;
  std::vector<Case> cases;
  for (Contestant& contestant : all) {
    cases.emplace_back(contestant.group, options.op, contestant.in_place, type, count);
    rows.push_back(
        {.backend = contestant.name, .bytes = count * element, .count = count, .us = 1e18});
  }
  const double seconds = options.seconds / options.rounds;
  for (int round = 0; round < options.rounds; ++round) {
    for (const size_t i : indices_of(all)) {
      const double us = time_of(cases[i], all[i].group, control, seconds, rows[i].wrong);
      rows[i].us = std::min(rows[i].us, us);
    }
  }
  for (CollectiveTime& row : rows) {
    auto wrong = torch::tensor({row.wrong});
    control.all_reduce(wrong);
    row.wrong = wrong.item<int64_t>();
    row.algbw = static_cast<double>(row.bytes) / row.us / 1e3;
    row.busbw = row.algbw * bus_factor(options.op, ctx.world_size());
  }
  return rows;
}

// Throws: backend_failed for the first row with a wrong result.
void check_results(const CollectiveTimes& rows, const std::string& op) {
  const CollectiveTime* const row =
      element_where(rows, [](const CollectiveTime& each) { return each.wrong != 0; });
  if (row == nullptr)
    return;
  throw Error(ErrorCode::backend_failed,
              cat(op,
                  ": expected the right result, got ",
                  row->wrong,
                  " wrong elements of ",
                  row->count,
                  " over ",
                  row->backend));
}

// Collective: what every rank does. Rank 0 prints, draws and leaves the results.
void measure(Context& ctx, const CollectivesBenchOptions& options) {
  const bool prints = ctx.is_main() && !options.json;
  auto groups = contestants(ctx, options);
  CollectiveTimes rows;
  if (prints)
    print_head(ctx, options);
  for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    for (const CollectiveTime& row : measure_size(ctx, options, groups, bytes)) {
      if (prints)
        print_row(row, options.dtype);
      rows.push_back(row);
    }
  }
  for (Contestant& contestant : groups)
    contestant.group.shutdown();
  if (ctx.is_main())
    leave_results(to_json(rows, options));
  if (ctx.is_main() && !options.svg.empty()) {
    const auto title = cat(options.op, ", ", ctx.world_size(), " ranks, ", options.dtype);
    write_named_file(options.svg, draw_times(rows, title));
  }
  check_results(rows, options.op);
}

// Throws: invalid_argument for a flag's value that is none of those known.
void check_is_known(const char* flag, const std::string& value, const Strings& known) {
  if (contains(known, value))
    return;
  throw invalid_argument(flag, ": expected ", join(known, ", "), ", got '", value, "'");
}

// Finds what is wrong before any rank is started.
void check(const CollectivesBenchOptions& options) {
  check_is_known("--op",
                 options.op,
                 {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"});
  for (const auto& backend : options.backends) {
    check_is_known(
        "--backends", backend, {"gloo", "shm", "shm-in-place", "shm+gloo", "nccl", "mpi"});
  }
  if (options.min_bytes > options.max_bytes) {
    throw invalid_argument(
        "--min: expected no more than --max (", options.max_bytes, "), got ", options.min_bytes);
  }
  type_named(options.dtype);
  if (!options.svg.empty())
    check_named_file("--svg", options.svg);
}

}  // namespace

// The ranks print the table themselves; the JSON comes as a whole.
int bench_collectives(const CollectivesBenchOptions& options, int argc, char** argv) {
  check(options);
  const BenchRun done =
      run_bench(options.ranks, argc, argv, [&](Context& ctx) { measure(ctx, options); });
  if (options.json && !done.results.empty())
    std::cout << done.results << std::endl;
  return done.exit_code;
}

}  // namespace muster
