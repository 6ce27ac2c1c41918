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

constexpr const char* kResultsFile = "MUSTER_BENCH_RESULTS";  // known to be a rank by it, too

BenchRun with_results(const std::function<int()>& start) {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    fail_errno(cat("cannot make '", folder, "'"), errno);
  const std::string file = folder + "/results";
  ::setenv(kResultsFile, file.c_str(), 1);
  BenchRun done{.exit_code = start()};
  ::unsetenv(kResultsFile);
  // A rank that mpirun or srun has started leaves none, but the first.
  if (done.exit_code == 0 && std::filesystem::exists(file))
    done.results = read_file(file);
  std::filesystem::remove_all(folder);
  return done;
}

}  // namespace

bool is_bench_rank() {
  return get_env(kResultsFile).has_value();
}

BenchRun run_bench(int ranks, int argc, char** argv, const std::function<void(Context&)>& measure) {
  const RunOptions options{.nproc = ranks, .surplus = Surplus::share};
  const auto measure_named = [&](Context& ctx) {
    ::unsetenv("MUSTER_BACKEND");  // it is for the job: what is compared goes by its own name
    measure(ctx);
  };
  const auto start = [&] {
    return run(options, argc, argv, measure_named);
  };
  return is_bench_rank() ? BenchRun{.exit_code = start()} : with_results(start);
}

BenchRun run_bench_program(int ranks, const std::vector<std::string>& argv) {
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
