// The peak memory of a process that loads a checkpoint, beside what stays:
//   # saves
//   muster run -n 2 --run-dir R build/release/benchmarks/load_memory_bench [MIB]
//   # loads that, and measures
//   muster run -n 2 --run-dir R build/release/benchmarks/load_memory_bench [MIB]
// The ratio is what the process needs at its peak beyond what it had before the model ÷ (model and
// state).
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

// In MiB; of /proc/self/status.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":"))
      return std::atof(line.c_str() + field.size() + 1) / 1024;
  return 0;
}

void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

torch::nn::Sequential model_of(int64_t mebibytes) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < mebibytes / 4; ++i)
    net->push_back(torch::nn::Linear(1024, 1024));
  return net;
}

void save(muster::Context& ctx, const std::string& folder, int64_t mebibytes) {
  auto net = model_of(mebibytes);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  for (auto& parameter : net->parameters())
    parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  muster::save_checkpoint(
      {.directory = folder}, {*net, &optimizer}, {.step = 1}, ctx.process_group());
}

void measure_load(muster::Context& ctx, const std::string& folder, int64_t mebibytes) {
  const double before = memory("VmRSS");
  auto net = model_of(mebibytes);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  forget_peak();
  muster::load_latest_checkpoint(folder, {*net, &optimizer}, ctx.process_group());
  const double stays = 3.0 * static_cast<double>(mebibytes), peak = memory("VmHWM") - before;
  std::printf("{\"rank\":%d,\"stays_mib\":%.0f,\"peak_mib\":%.0f,\"ratio\":%.2f}\n",
              ctx.rank(),
              stays,
              peak,
              peak / stays);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t mebibytes = argc > 1 ? std::atoll(argv[1]) : 256;
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    const std::string folder = ctx.run_dir() + "/checkpoints";
    std::filesystem::exists(folder + "/step-1") ? measure_load(ctx, folder, mebibytes)
                                                : save(ctx, folder, mebibytes);
  });
}
