// The benchmark's process starts this program again as ranks. Rank 0 hands its results over in a
// file of a temporary folder, whose path the ranks find in an environment variable: a rank's
// standard output carries a prefix, and under mpirun or srun it is not ours to read.
#include "muster/bench/bench_results.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/launch/launch.h"
#include "muster/run/run.h"

namespace muster {

namespace {

// A process that has this variable is a rank of a benchmark.
constexpr auto kResultsFile = "MUSTER_BENCH_RESULTS";

// Starts ranks by `start`, which returns their exit code, and collects what rank 0 left.
BenchRun with_results(const std::function<int()>& start) {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    fail_errno(errno, "cannot make '", folder, "'");
  const std::string file = folder + "/results";
  ::setenv(kResultsFile, file.c_str(), 1);
  BenchRun done{.exit_code = start()};
  ::unsetenv(kResultsFile);
  // Under mpirun or srun every process comes here, and only rank 0 has left results.
  if (done.exit_code == 0 && std::filesystem::exists(file))
    done.results = read_file(file);
  std::filesystem::remove_all(folder);
  return done;
}

}  // namespace

bool is_bench_rank() {
  return get_env(kResultsFile).has_value();
}

// The ranks share what devices there are: a benchmark compares backends, not devices.
BenchRun run_bench(int ranks, int argc, char** argv, const std::function<void(Context&)>& measure) {
  const RunOptions options{.nproc_per_node = ranks, .surplus = Surplus::share};
  const auto measure_named = [&](Context& ctx) {
    // The variable is meant for the job's own group; what is compared goes by its own name.
    ::unsetenv("MUSTER_BACKEND");
    measure(ctx);
  };
  const auto start = [&] {
    return run(options, argc, argv, measure_named);
  };
  if (is_bench_rank())
    return {.exit_code = start()};
  return with_results(start);
}

BenchRun run_bench_program(int ranks, const Strings& argv) {
  LaunchOptions options{.argv = argv, .quiet = true};
  ::unsetenv("MUSTER_BACKEND");
  options.request.nproc_per_node = ranks;
  options.request.surplus = Surplus::share;
  return with_results([&] { return launch(options); });
}

void leave_results(const std::string& text) {
  if (const auto file = get_env(kResultsFile))
    write_file(*file, text);
}

}  // namespace muster
