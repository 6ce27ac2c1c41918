// How long training stands still for a checkpoint: written before it goes on, and by a thread
// meanwhile.
//
//   save_bench [MIB] [FOLDER]    a model of so many MiB (256) with its Adam state, three times as
//                                much in all; prints one JSON line, of medians of 5 turns
#include <muster/muster.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "muster/base/clock.h"

namespace {

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure_saves(muster::Context& ctx, int64_t mebibytes, const std::string& folder) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < mebibytes / 4; ++i)
    net->push_back(torch::nn::Linear(1024, 1024));
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  for (auto& parameter : net->parameters())
    parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();

  const auto checkpoints = [&](bool background) {
    auto all = std::make_unique<muster::Checkpoints>(
        ctx,
        muster::CheckpointsOptions{.folder = folder, .keep_last = 1, .background = background});
    all->add("model", net).add("optimizer", optimizer);
    return all;
  };
  const auto here = checkpoints(false), behind = checkpoints(true);
  std::vector<double> whole, stall, written;
  for (int64_t turn = 0; turn < 6; ++turn) {
    auto start = muster::Clock::now();
    here->save(2 * turn);
    const double of_whole = muster::seconds_since(start);
    start = muster::Clock::now();
    behind->save(2 * turn + 1);
    const double of_stall = muster::seconds_since(start);
    behind->finish();
    const double of_written = muster::seconds_since(start);
    if (turn == 0)
      continue;  // memory is new
    whole.push_back(of_whole);
    stall.push_back(of_stall);
    written.push_back(of_written);
  }
  std::cout << muster::to_json_line({{"save_seconds", median_of(whole)},
                                     {"stall_seconds", median_of(stall)},
                                     {"written_seconds", median_of(written)},
                                     {"stall_ratio", median_of(stall) / median_of(written)}})
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t mebibytes = argc > 1 ? std::atoll(argv[1]) : 256;
  const std::string folder =
      argc > 2 ? argv[2] : (std::filesystem::temp_directory_path() / "muster-save-bench").string();
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    measure_saves(ctx, mebibytes, folder);
    if (argc <= 2 && ctx.is_main())
      std::filesystem::remove_all(folder);
  });
}
