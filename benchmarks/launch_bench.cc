// How long it takes to start a program that does nothing, N times, by muster and by its peers: all
// in one run, taking turns, so that whatever else the machine does meets them all alike.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "benchmarks/launchers.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/probe.h"

namespace {

using muster::bench::Launcher;
using muster::bench::LauncherOptions;
using muster::bench::Sample;

// An empty folder to work in, gone at the end: the launcher writes its run's folder where it is
// started.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::temp_directory_path() / "muster-bench-XXXXXX") {
    std::string name = path_.string();
    if (::mkdtemp(name.data()) == nullptr)
      muster::fail_errno("benchmark: cannot make a folder", errno);
    path_ = name;
    std::filesystem::current_path(path_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::current_path("/", ignored);
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::filesystem::path path_;
};

void measure(std::vector<Launcher>& all, int rounds) {
  for (int round = -1; round < rounds; ++round) {  // the first only warms the caches
    for (Launcher& launcher : all) {
      if (!launcher.absent.empty() || round >= launcher.runs)
        continue;
      const double ms = muster::bench::time_processes(launcher.command, launcher.processes);
      if (round >= 0)
        launcher.sample.ms.push_back(ms);
    }
  }
}

void print_table(const std::vector<Launcher>& all, int ranks) {
  std::printf("Starting %d × a program that does nothing, until all have ended\n", ranks);
  std::printf("  %-14s %10s %10s %6s\n", "", "min ms", "median ms", "runs");
  for (const Launcher& launcher : all) {
    if (launcher.absent.empty()) {
      std::printf("  %-14s %10.2f %10.2f %6zu\n",
                  launcher.name.c_str(),
                  launcher.sample.minimum(),
                  launcher.sample.median(),
                  launcher.sample.ms.size());
    } else {
      std::printf("  %-14s %10s  %s\n", launcher.name.c_str(), "absent:", launcher.absent.c_str());
    }
  }
}

void print_peak_memory(Launcher muster) {
  muster.command.emplace_back("--parent-peak");
  const std::string told = muster::bench::output_of(muster.command);
  const size_t digits = told.find_first_of("0123456789", told.find("VmHWM:"));
  if (told.find("VmHWM:") == std::string::npos || digits == std::string::npos) {
    throw muster::Error(
        muster::ErrorCode::internal,
        muster::cat("benchmark: expected a rank's line with VmHWM, got '", told, "'"));
  }
  std::printf("Peak memory of the launcher: %.1f MiB\n", std::stod(told.substr(digits)) / 1024);
}

double probe_ms(bool gpus) {
  const auto begin = muster::Clock::now();
  muster::probe_this_machine({.gpus = gpus});
  return muster::seconds_since(begin) * 1e3;
}

// What looking for GPUs costs. The first time is what a launcher pays: NVML starts once a process.
void print_discovery() {
  const double first = probe_ms(true);
  Sample with;
  Sample without;
  for (int i = 0; i < 20; ++i) {
    with.ms.push_back(probe_ms(true));
    without.ms.push_back(probe_ms(false));
  }
  const muster::Host host = muster::probe_this_machine().hosts.at(0);
  std::printf(
      "Discovery of this machine, ms: %.2f the first time; again: %.2f with GPUs, %.2f without "
      "looking for "
      "them\n",
      first,
      with.median(),
      without.median());
  if (host.driver_version.empty()) {
    std::printf("  no NVIDIA driver here, so this is the cost of finding that out (%s)\n",
                host.gpu_note.c_str());
  } else {
    std::printf("  %zu GPUs, driver %s\n", host.gpus.size(), host.driver_version.c_str());
  }
}

void print_last_line(const std::vector<Launcher>& all) {
  const double ours = all.at(1).sample.median();
  for (size_t i = 2; i < all.size(); ++i) {
    if (all[i].absent.empty())
      std::printf("%s / muster %.2f; ", all[i].name.c_str(), all[i].sample.median() / ours);
  }
  std::printf("muster above fork + exec, ms: %.2f\n", ours - all.at(0).sample.median());
}

void run(const LauncherOptions& options) {
  const Scratch scratch;
  std::vector<Launcher> all = launchers(options);
  measure(all, options.runs);
  print_table(all, options.ranks);
  print_peak_memory(all.at(1));
  print_discovery();
  print_last_line(all);
}

}  // namespace

int main(int argc, char** argv) {
  LauncherOptions options{.python = DEFAULT_PYTHON, .muster = MUSTER_PROGRAM};
  CLI::App app("Times the start of a job by muster and by its peers.");
  app.add_option("--ranks", options.ranks, "processes a job")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--runs", options.runs, "of each launcher")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--slow-runs", options.slow_runs, "of torchrun, which takes seconds")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--python", options.python, "a Python that imports torch")->capture_default_str();
  app.add_option("--muster", options.muster, "the launcher")
      ->capture_default_str()
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    options.muster =
        std::filesystem::absolute(options.muster).string();  // the working folder will be another
    if (options.python.find('/') != std::string::npos) {
      options.python = std::filesystem::absolute(options.python).string();
    }
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launch_bench: %s\n", error.what());
    return 1;
  }
}
