// Does, on every rank and its GPU, what its first argument says: for gpu_programs_test.py.
#include "gpu_probe.h"

#include <torch/version.h>

#include <iostream>
#include <stdexcept>
#include <string>

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "version") {
    std::cout << TORCH_VERSION << std::endl;
    return 0;
  }
  gpu_probe::Probes probes = gpu_probe::value_probes();
  probes.merge(gpu_probe::failure_probes());
  probes.merge(gpu_probe::cost_probes());
  probes.merge(gpu_probe::graph_probes());
  muster::RunOptions options;
  options.nccl = {.high_priority_stream = what == "high priority", .split = what != "no split"};
  return muster::run(options, argc, argv, [&](muster::Context& ctx) {
    if (!ctx.device().is_cuda())
      throw std::runtime_error("gpu_probe: expected a GPU, got " + ctx.device().str());
    const auto probe = probes.find(what);
    if (probe == probes.end())
      throw std::invalid_argument("gpu_probe: unknown '" + what + "'");
    probe->second(ctx);
    if (ctx.is_main())
      std::cout << "gpu_probe: " << what << " holds" << std::endl;
  });
}
