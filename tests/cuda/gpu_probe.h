// What the sources of gpu_probe share. Each has a table of probes: what a rank does on its GPU, by
// the word that gpu_programs_test.py gives as the first argument.
#pragma once

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <muster/muster.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace gpu_probe {

using Probes = std::map<std::string, std::function<void(muster::Context&)>>;

Probes value_probes();    // gpu_probe_values.cc
Probes failure_probes();  // gpu_probe_failures.cc
Probes cost_probes();     // gpu_probe_costs.cc
Probes graph_probes();    // gpu_probe_graphs.cc

inline void expect(bool holds, const std::string& what) {
  if (!holds)
    throw std::runtime_error("expected " + what);
}

// A stream of LibTorch's own, other than the one on which a program begins.
inline c10::Stream stream_of_pool(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

inline torch::nn::Sequential small_net() {
  torch::manual_seed(11);
  return torch::nn::Sequential(torch::nn::Linear(12, 16),
                               torch::nn::BatchNorm1d(16),
                               torch::nn::Tanh(),
                               torch::nn::Linear(16, 5));
}

}  // namespace gpu_probe
