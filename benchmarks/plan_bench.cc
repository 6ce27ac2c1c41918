// How long it takes to plan a very large job, by every policy, and how much memory that needs: 100
// 000 ranks over 12 500 hosts against the bar of one second and 1 GB. No machine is needed, the
// hosts are invented.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "benchmarks/invented_hosts.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/planner.h"
#include "muster/placement/policy/policy.h"

namespace {

constexpr double kBarSeconds = 1;
constexpr double kBarBytes = 1e9;

struct Options {
  int hosts = 12'500;
  int runs = 3;
};

muster::Request request_for(const muster::Policy& policy) {
  muster::Request request{.policy = policy.name, .global_batch = 1'000'000};
  const std::string_view name = policy.name;
  if (name == "list")
    request.map = {7, 6, 5, 4, 3, 2, 1, 0};
  if (name == "fastest")
    request.scores = {{"0", 3}, {"NVIDIA H100 80GB HBM3", 2}};
  if (name == "memory")
    request.rank_memory_bytes = {kInventedGpuBytes / 2};
  if (name == "mesh")
    request.mesh = {{.name = "dp", .size = -1}, {.name = "tp", .size = kInventedGpus}};
  return request;
}

double peak_bytes() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

// The fastest of some runs.
double plan_seconds(const muster::Inventory& inventory, const muster::Request& request, int runs) {
  double best = 0;
  for (int run = 0; run < runs; ++run) {
    const auto begin = muster::Clock::now();
    const muster::Plan plan = muster::plan(inventory, request);
    const double seconds = muster::seconds_since(begin);
    const size_t wanted = inventory.hosts.size() * kInventedGpus;
    if (plan.ranks.size() != wanted) {
      throw muster::Error(
          muster::ErrorCode::internal,
          muster::cat("benchmark: expected ", wanted, " ranks, got ", plan.ranks.size()));
    }
    best = run == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

void print_line(const std::string& name, double seconds) {
  std::printf(
      "  %-24s %8.3f s   peak so far %6.0f MB\n", name.c_str(), seconds, peak_bytes() / 1e6);
}

void run(const Options& options) {
  muster::Inventory inventory{.source = "benchmark", .simulated = true};
  for (int i = 0; i < options.hosts; ++i)
    inventory.hosts.push_back(invented_host(i));
  std::printf(
      "Planning %d ranks over %d hosts, the fastest of %d; the hosts themselves take %.0f MB\n",
      options.hosts * kInventedGpus,
      options.hosts,
      options.runs,
      peak_bytes() / 1e6);
  double slowest = 0;
  for (const muster::Policy& policy : muster::policies()) {
    const double seconds = plan_seconds(inventory, request_for(policy), options.runs);
    slowest = std::max(slowest, seconds);
    print_line(policy.name, seconds);
  }
  const muster::Request bound{.global_batch = 1'000'000,
                              .numa_binding = muster::NumaBinding::exclusive};
  const double seconds = plan_seconds(inventory, bound, options.runs);
  print_line("sequential, CPUs bound", seconds);
  slowest = std::max(slowest, seconds);
  const double memory = peak_bytes();
  std::printf(
      "The bar is %.0f s and %.0f MB: the slowest takes %.2f of the time, all together %.2f of the "
      "memory\n",
      kBarSeconds,
      kBarBytes / 1e6,
      slowest / kBarSeconds,
      memory / kBarBytes);
  std::printf("worst ratio to the bar %.2f\n", std::max(slowest / kBarSeconds, memory / kBarBytes));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times the planning of a very large job.");
  app.add_option("--hosts", options.hosts, "of 8 GPUs each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--runs", options.runs, "of each policy")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plan_bench: %s\n", error.what());
    return 1;
  }
}
