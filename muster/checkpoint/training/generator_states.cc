#include "muster/checkpoint/training/generator_states.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

namespace muster {

namespace {

constexpr char kHasDevice = 1;  // before the state of a GPU's generator; CPU ranks have zeros there

at::Generator default_generator(c10::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator()
                         : at::globalContext().defaultGenerator(device);
}

std::string state_of(c10::Device device) {
  at::Generator generator = default_generator(device);
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

// A row a rank, each as long as the longest.
at::Tensor rows_of(const std::vector<std::string>& ranks) {
  size_t longest = 0;
  for (const std::string& bytes : ranks)
    longest = std::max(longest, bytes.size());
  at::Tensor rows = at::zeros({std::ssize(ranks), static_cast<int64_t>(longest)}, at::kByte);
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    std::copy(
        ranks[rank].begin(), ranks[rank].end(), rows.mutable_data_ptr<uint8_t>() + rank * longest);
  return rows;
}

void load_state_of(const ProcessGroup& group, c10::Device device, const at::Tensor& rows) {
  at::Generator generator = default_generator(device);
  const std::lock_guard lock(generator.mutex());
  const bool is_known = group.rank() < rows.size(0);
  at::Tensor state = rows[is_known ? group.rank() : 0];
  if (!device.is_cpu()) {
    if (state[0].item<int64_t>() != kHasDevice)
      return;  // a CPU rank saved it
    state = state.slice(0, 1);
  }
  // With memory of its own: LibTorch reads a state from where its storage begins.
  generator.set_state(state.clone());
  if (is_known)
    return;
  generator.set_current_seed(generator.current_seed() + static_cast<uint64_t>(group.rank()));
}

}  // namespace

// Some ranks may have a GPU and others none: all of them make the same call.
SavedState generator_states(ProcessGroup& group) {
  const std::string cpu = state_of(c10::kCPU);
  const std::string device = group.device().is_cpu() ? "" : kHasDevice + state_of(group.device());
  const auto both = group.all_gather_bytes(cpu + device, "of random generators");
  std::vector<std::string> cpus, devices;
  for (const std::string& of_rank : both) {
    cpus.push_back(of_rank.substr(0, cpu.size()));
    devices.push_back(of_rank.substr(cpu.size()));
  }
  const bool any =
      std::any_of(devices.begin(), devices.end(), [](const auto& state) { return !state.empty(); });
  SavedState state;
  state.tensors["cpu"] = rows_of(cpus);
  if (any)
    state.tensors["device"] = rows_of(devices);
  return state;
}

void load_generator_states(const ProcessGroup& group, const SavedState& state) {
  load_state_of(group, c10::kCPU, state.tensor("generators", "cpu"));
  // Saved on GPUs and resumed on the CPU, or the other way round: there is none to take.
  const auto device = state.tensors.find("device");
  if (!group.device().is_cpu() && device != state.tensors.end())
    load_state_of(group, group.device(), device->second);
}

}  // namespace muster
