// checkpoint_writer FOLDER [LIMIT]: goes on from the newest checkpoint and saves a next step again
// and again, every tensor filled with the step's number; says "saved N" after each. With LIMIT, the
// kernel kills it when a file grows to that many bytes.
#include <sys/resource.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/checkpoint/model.h"

int main(int argc, char** argv) {
  if (argc < 2)
    return 2;
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  try {
    auto model = muster::test::big_model();
    const muster::TrainingState state{*model};
    const auto resumed = muster::load_latest_checkpoint(argv[1], state);
    if (argc > 2) {
      const rlimit limit{std::strtoul(argv[2], nullptr, 10), RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    for (int64_t step = resumed ? resumed->position.step + 1 : 1;; ++step) {
      muster::test::fill(*model, static_cast<double>(step));
      muster::save_checkpoint({.directory = argv[1], .keep_last = 2}, state, {.step = step});
      std::printf("saved %lld\n", static_cast<long long>(step));
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
