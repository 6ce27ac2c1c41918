// `muster bench ddp` starts its ranks anew in every round, since what a process has allocated and
// cached shifts all of its times alike. Within a round the kinds take turns step by step
// (ddp_kinds.cc). With --python each round also starts python_ddp.py, which does the same with
// PyTorch's own DDP. The parent collects the times of all rounds and prints medians and ratios.
#include "muster/bench/ddp_bench.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/own_program.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/bench/bench_models.h"
#include "muster/bench/bench_results.h"
#include "muster/bench/ddp_kinds.h"
#include "muster/ddp/bucket_cap.h"
#include "muster/run/run.h"

namespace muster {

namespace {

using Json = nlohmann::json;

// The times of each program, whose first kind is the baseline of its others. Python's kinds take
// turns with those of this program only round by round, so their baseline is Python's own.
using Programs = std::vector<DdpTimes>;

// The format is also that of python_ddp.py.
std::string results_of(const DdpTimes& times) {
  return Json{{"kinds", times.wall.kinds},
              {"wall", times.wall.rounds},
              {"processor", times.processor.rounds}}
      .dump();
}

// Adds a round's results, as results_of() or python_ddp.py wrote them.
void add(DdpTimes& times, const std::string& results) {
  const Json found = Json::parse(results);
  const auto add_to = [&](PairedTimes& to, const char* name) {
    found["kinds"].get_to(to.kinds);
    for (const Json& round : found[name])
      to.rounds.push_back(round);
  };
  add_to(times.wall, "wall");
  add_to(times.processor, "processor");
}

std::string text_of(const Spread& ratio) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f (%.3f-%.3f)", ratio.median, ratio.low, ratio.high);
  return text;
}

// The first kind of each program is the baseline and has no ratio.
void print_table(const Programs& programs, const DdpBenchOptions& options) {
  std::printf("# a step of %s, batch %ld a rank, %d ranks; the kinds take turns step by step\n",
              options.model.c_str(),
              options.batch,
              options.ranks);
  std::printf("# a ratio compares with none in the same turn: median (quartiles) of %d turns\n",
              options.steps * options.rounds);
  if (programs.size() > 1) {
    std::printf(
        "# Python's kinds take turns step by step too, and with the C++ kinds round by round\n");
  }
  std::printf(
      "%-20s %9s %15s %22s %22s\n", "", "ms", "ms beyond none", "ratio", "of processor time");
  for (const DdpTimes& times : programs) {
    for (const size_t kind : indices_of(times.wall.kinds)) {
      std::printf("%-20s %9.2f", times.wall.kinds[kind].c_str(), times_of(times.wall, kind).median);
      if (kind != 0) {
        std::printf(" %15.2f %22s %22s",
                    differences_of(times.wall, kind, 0).median,
                    text_of(ratios_of(times.wall, kind, 0)).c_str(),
                    text_of(ratios_of(times.processor, kind, 0)).c_str());
      }
      std::printf("\n");
    }
  }
  std::fflush(stdout);
}

Json spread_json(const Spread& spread, const std::string& baseline) {
  return {{"to", baseline}, {"median", spread.median}, {"low", spread.low}, {"high", spread.high}};
}

// "to" names the baseline of each ratio.
std::string as_json(const Programs& programs, const DdpBenchOptions& options) {
  Json ms = Json::object(), ratios = Json::object(), processor = Json::object();
  for (const DdpTimes& times : programs) {
    const auto& kinds = times.wall.kinds;
    for (const size_t kind : indices_of(kinds)) {
      ms[kinds[kind]] = times_of(times.wall, kind).median;
      if (kind == 0)
        continue;
      ratios[kinds[kind]] = spread_json(ratios_of(times.wall, kind, 0), kinds[0]);
      processor[kinds[kind]] = spread_json(ratios_of(times.processor, kind, 0), kinds[0]);
    }
  }
  return Json{{"schema", "muster.bench_ddp/2"},
              {"model", options.model},
              {"batch", options.batch},
              {"ranks", options.ranks},
              {"turns", options.steps * options.rounds},
              {"ms", ms},
              {"ratios", ratios},
              {"processor_ratios", processor}}
      .dump(2);
}

// The script is installed beside this program.
std::string python_script() {
  return std::filesystem::path(own_program()).parent_path() / "python_ddp.py";
}

// Throws: invalid_argument for an unknown kind, or for a cap of buckets that is no size.
void check_kinds(const DdpBenchOptions& options) {
  Strings known = ddp_kind_names(false);
  append_all(known, ddp_kind_names(true));
  known = distinct(known);
  for (const auto& kind : options.kinds) {
    // A kind is a backend, and may have a cap of buckets behind a colon.
    const size_t colon = kind.find(':');
    const std::string cap = colon == npos ? "auto" : kind.substr(colon + 1);
    const bool knows_backend = contains(known, kind.substr(0, colon));
    const double mib = parse_as<double>(cap).value_or(0);
    if (knows_backend && (cap == "auto" || (mib > 0 && BucketCap(mib).is_size())))
      continue;
    throw invalid_argument("--kinds: expected ",
                           join(known, ", "),
                           ", with :MIB or :auto behind for the cap of buckets, got '",
                           printable(kind),
                           "'");
  }
}

// Makes ranks keep the memory that they free. A gradient of some MiB would otherwise go back to the
// kernel at every zero_grad(), and only the loop without communication would pay for having it
// mapped and zeroed again: DDP's gradients stay in its buckets.
void keep_freed_memory() {
  ::setenv("MALLOC_MMAP_MAX_", "0", 0);
  ::setenv("MALLOC_TRIM_THRESHOLD_", "17179869184", 0);
  ::setenv("MALLOC_TOP_PAD_", "67108864", 0);
}

void log_round(int round, const DdpBenchOptions& options) {
  log_info("round ",
           round + 1,
           " of ",
           options.rounds,
           ": ",
           options.model,
           ", batch ",
           options.batch,
           ", ",
           options.ranks,
           " ranks");
}

// One round of Python's DDP, on ranks of its own.
BenchRun run_python(const DdpBenchOptions& options) {
  return run_bench_program(options.ranks,
                           {options.python,
                            "-u",
                            python_script(),
                            options.model,
                            cat(options.batch),
                            cat(options.steps)});
}

// In each round every program starts its ranks once. Returns the exit code of the first that fails,
// or 0.
int run_rounds(const std::vector<std::function<BenchRun()>>& starts,
               const DdpBenchOptions& options,
               Programs& programs) {
  for (int round = 0; round < options.rounds; ++round) {
    log_round(round, options);
    for (const size_t i : indices_of(starts)) {
      const BenchRun done = starts[i]();
      if (done.exit_code != 0)
        return done.exit_code;
      add(programs[i], done.results);
    }
  }
  return 0;
}

}  // namespace

int bench_ddp(DdpBenchOptions options, int argc, char** argv) {
  if (options.batch == 0)
    options.batch = default_batch(options.model);
  check_kinds(options);
  const auto run_round = [&] {
    return run_bench(options.ranks, argc, argv, [&](Context& ctx) {
      const DdpTimes times = measure_ddp_kinds(ctx, options);
      if (ctx.is_main())
        leave_results(results_of(times));
    });
  };
  if (is_bench_rank()) {
    int exit_code = 0;
    // A rank makes all the calls, of which one is the call that it was started for.
    for (int round = 0; round < options.rounds; ++round)
      exit_code = run_round().exit_code;
    return exit_code;
  }
  make_bench_model(options.model);  // throws for an unknown name, before any rank is started
  keep_freed_memory();
  // Python's ranks, if any, come first in each round.
  std::vector<std::function<BenchRun()>> starts = {run_round};
  if (!options.python.empty())
    starts.insert(starts.begin(), [&] { return run_python(options); });
  Programs programs(starts.size());
  if (const int exit_code = run_rounds(starts, options, programs); exit_code != 0)
    return exit_code;
  if (options.json) {
    std::cout << as_json(programs, options) << std::endl;
  } else {
    print_table(programs, options);
  }
  return 0;
}

}  // namespace muster
