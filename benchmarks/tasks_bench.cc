// How many tasks a second `muster tasks` starts and ends, and how well it fills its slots, beside
// GNU parallel, task-spooler and xargs, and beside a loop that only starts and waits for the same
// programs: no runner of them can be faster than that. The peers keep no journal; muster's is on
// the disk of the folder that is given. Peers that are not installed are named as such. All are run
// one after the other, again and again.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "benchmarks/measure.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace {

namespace fs = std::filesystem;
using muster::cat;
using muster::bench::Command;

struct Options {
  int tasks = 2'000;
  std::string program = TRIVIAL_PROGRAM;  // the trivial one
  int slots = 4;
  int runs = 3;
  std::string folder = fs::temp_directory_path() / cat("muster-tasks-bench-", ::getpid());
};

struct Runner {
  std::string name = {};
  std::string program = {};  // that must be there
  std::string trivial = {};  // shell lines: all trivial tasks
  std::string sleeps = {};   // and all those that sleep
  muster::bench::Sample trivial_times = {};
  muster::bench::Sample sleep_times = {};
};

// One line a task, of up to 0.2 s.
std::vector<double> write_lists(const Options& options) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> hundredths(1, 20);
  std::vector<double> seconds;
  std::ofstream names(options.folder + "/names");
  std::ofstream trivial(options.folder + "/trivial.toml");
  trivial << "[[task]]\nname = \"t{i}\"\nargv = [\"" << options.program
          << "\"]\nneeds = { cpus = 1 }\neach = { i = \"1.." << options.tasks << "\" }\n";
  for (int i = 1; i <= options.tasks; ++i)
    names << i << "\n";
  std::ofstream lines(options.folder + "/sleeps");
  std::ofstream spec(options.folder + "/sleeps.toml");
  for (int i = 0; i < 100; ++i) {
    seconds.push_back(hundredths(random) / 100.0);
    lines << seconds.back() << "\n";
    spec << "[[task]]\nname = \"s" << i << "\"\nargv = [\"sleep\", \"" << seconds.back()
         << "\"]\nneeds = { cpus = 1 }\n";
  }
  return seconds;
}

// Its server takes a client a task; a last one waits for the end of all.
std::string spool_lines(const Options& options,
                        const std::string& program,
                        const std::string& list) {
  return cat("export TS_SOCKET=$PWD/tsp TMPDIR=$PWD; tsp -S ",
             options.slots,
             "; while read word; do tsp -n ",
             program,
             " $word; done <",
             list,
             "; tsp -w; while tsp | grep -q ' running '; do sleep 0.01; done; tsp -K");
}

// The trivial program, `slots` at a time, by a loop that does nothing else. Milliseconds.
double time_bare_loop(const Options& options) {
  std::string program = options.program;
  char* const argv[] = {program.data(), nullptr};
  const auto started = muster::Clock::now();
  int running = 0;
  for (int begun = 0; begun < options.tasks || running > 0;) {
    if (begun < options.tasks && running < options.slots) {
      pid_t pid = 0;
      const int failed = ::posix_spawn(&pid, argv[0], nullptr, nullptr, argv, environ);
      if (failed != 0)
        muster::fail_errno(cat("cannot start ", program), failed);
      ++begun;
      ++running;
    } else if (::wait(nullptr) > 0) {
      --running;
    }
  }
  return muster::seconds_since(started) * 1e3;
}

std::vector<Runner> runners(const Options& options) {
  const std::string slots = cat(options.slots);
  const std::string muster = cat(
      MUSTER_PROGRAM " tasks -q --cpus ", slots, " --run-dir \"$PWD/$(mktemp -u run-XXXXXX)\" ");
  return {
      {.name = "muster tasks",
       .program = MUSTER_PROGRAM,
       .trivial = muster + "trivial.toml",
       .sleeps = muster + "sleeps.toml"},
      {.name = "GNU parallel",
       .program = "parallel",
       .trivial = cat("parallel --will-cite -j ", slots, " ", options.program, " <names"),
       .sleeps = cat("parallel --will-cite -j ", slots, " sleep <sleeps")},
      {.name = "task-spooler",
       .program = "tsp",
       .trivial = spool_lines(options, options.program, "names"),
       .sleeps = spool_lines(options, "sleep", "sleeps")},
      {.name = "xargs -P",
       .program = "xargs",
       .trivial = cat("xargs -P ", slots, " -n 1 ", options.program, " <names"),
       .sleeps = cat("xargs -P ", slots, " -n 1 sleep <sleeps")},
  };
}

double time_lines(const Options& options, const std::string& lines) {
  return muster::bench::time_processes(
      {"sh", "-c", cat("cd ", options.folder, "; { ", lines, "; } >out 2>&1")}, 1);
}

void run(const Options& options) {
  fs::create_directories(options.folder);
  const std::vector<double> seconds = write_lists(options);
  double work = 0;
  for (const double one : seconds)
    work += one;
  std::vector<Runner> all = runners(options);
  std::erase_if(all, [](const Runner& runner) {
    const bool there =
        muster::bench::works({"sh", "-c", "command -v " + runner.program + " >/dev/null"});
    if (!there)
      std::printf("%s is not installed and left out\n", runner.name.c_str());
    return !there;
  });
  muster::bench::Sample bare;
  for (int i = 0; i < options.runs; ++i) {
    bare.ms.push_back(time_bare_loop(options));
    for (Runner& runner : all) {
      runner.trivial_times.ms.push_back(time_lines(options, runner.trivial));
      runner.sleep_times.ms.push_back(time_lines(options, runner.sleeps));
    }
  }
  std::printf(
      "%d times %s, and 100 programs that sleep %.1f s together, %d at a time; the fastest of %d\n",
      options.tasks,
      options.program.c_str(),
      work,
      options.slots,
      options.runs);
  std::printf("%-14s  %10s  %28s\n", "", "tasks/s", "makespan / (work / slots)");
  for (const Runner& runner : all) {
    std::printf("%-14s  %10.0f  %28.3f\n",
                runner.name.c_str(),
                1e3 * options.tasks / runner.trivial_times.minimum(),
                runner.sleep_times.minimum() / 1e3 / (work / options.slots));
  }
  std::printf("%-14s  %10.0f\n", "no runner", 1e3 * options.tasks / bare.minimum());
  const double mine = all.front().trivial_times.minimum();
  std::printf("tasks/s, muster tasks ÷");
  for (size_t i = 1; i < all.size(); ++i)
    std::printf(" %s: %.2f,", all[i].name.c_str(), all[i].trivial_times.minimum() / mine);
  std::printf(" no runner: %.2f\n", bare.minimum() / mine);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times muster tasks beside other runners of many commands.");
  app.add_option("--tasks", options.tasks, "trivial ones")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--program",
                 options.program,
                 "the trivial one; /bin/true takes longer to start, by the C library it loads")
      ->capture_default_str()
      ->check(CLI::ExistingFile);
  app.add_option("--slots", options.slots, "tasks at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--runs", options.runs, "of each")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_option("--folder", options.folder, "for journals and logs; removed at the end");
  CLI11_PARSE(app, argc, argv);
  int exit_code = 0;
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tasks_bench: %s\n", error.what());
    exit_code = 1;
  }
  std::error_code ignored;
  fs::remove_all(options.folder, ignored);
  return exit_code;
}
