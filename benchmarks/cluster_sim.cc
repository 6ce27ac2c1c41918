// What the coordinator of a job costs with more hosts than anybody has here, on a virtual clock and
// a modelled network (cluster_simulation.h). Prints a table for each number of hosts, and the bars.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <vector>

#include "benchmarks/cluster_simulation.h"
#include "benchmarks/invented_hosts.h"

namespace {

constexpr double kBarProcessor = 2;  // seconds, for the start of 10,000 hosts
constexpr int kBarHosts = 10'000;
constexpr int kShareLost = 10;  // one host of so many, all at once

struct Options {
  std::vector<int> hosts = {100, 1'000, 10'000};
  int times = 50;
  NetworkModel network;
};

void print(const PhaseCost& cost) {
  std::printf("  %-42s %9.3f s  processor %8.3f s  %10.1f kB a host  %6.1f messages a host\n",
              cost.name.c_str(),
              cost.seconds,
              cost.processor,
              cost.bytes_per_host / 1e3,
              cost.messages_per_host);
  std::fflush(stdout);
}

void run(int hosts, const Options& options) {
  std::printf("%d hosts, %d ranks\n", hosts, hosts * kInventedGpus);
  ClusterSimulation simulation(options.network, hosts, hosts);
  const PhaseCost start = simulation.start();
  print(start);
  print(simulation.lose_a_host());
  print(simulation.replace_them());
  print(simulation.lose_hosts(std::max(hosts / kShareLost, 1)));
  print(simulation.replace_them());
  print(simulation.fail_everywhere());
  if (options.times > 0)
    print(simulation.come_and_go(options.times));
  std::printf("  the logs hold %zu entries, %.1f MB\n",
              simulation.log_entries(),
              simulation.log_bytes() / 1e6);
  print(simulation.end());
  if (hosts == kBarHosts)
    std::printf("start of %d hosts: processor time against the bar of %.0f s: ratio %.2f\n",
                kBarHosts,
                kBarProcessor,
                start.processor / kBarProcessor);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Simulates the coordinator of a very large job.");
  app.add_option("--hosts", options.hosts, "Numbers of hosts, of 8 GPUs each")
      ->capture_default_str()
      ->check(CLI::Range(2, 1'000'000));
  app.add_option("--times", options.times, "How often a host leaves and another joins")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--latency", options.network.latency, "Seconds, one way")->capture_default_str();
  app.add_option(
         "--bytes-per-second", options.network.bytes_per_second, "Of the coordinator's link")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--loss", options.network.loss, "Of messages, 0 to 1")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  CLI11_PARSE(app, argc, argv);
  try {
    for (const int hosts : options.hosts)
      run(hosts, options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cluster_sim: %s\n", error.what());
    return 1;
  }
}
