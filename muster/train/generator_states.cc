#include "muster/train/generator_states.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <mutex>

namespace muster {

namespace {

at::Generator default_generator(c10::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator()
                         : at::globalContext().defaultGenerator(device);
}

at::Tensor states_of_all(ProcessGroup& group, c10::Device device) {
  at::Generator generator = default_generator(device);
  at::Tensor mine;
  {
    const std::lock_guard lock(generator.mutex());
    mine = generator.get_state();
  }
  at::Tensor all = at::empty({group.size(), mine.numel()}, mine.options().device(group.device()));
  group.all_gather(all, mine.to(group.device()));
  return all.cpu();
}

void load_state_of(const ProcessGroup& group, c10::Device device, const at::Tensor& states) {
  at::Generator generator = default_generator(device);
  const std::lock_guard lock(generator.mutex());
  const bool is_known = group.rank() < states.size(0);
  // With memory of its own: LibTorch reads a state from where its storage begins.
  generator.set_state(states[is_known ? group.rank() : 0].clone());
  if (is_known) return;
  generator.set_current_seed(generator.current_seed() + static_cast<uint64_t>(group.rank()));
}

}  // namespace

SavedState generator_states(ProcessGroup& group) {
  SavedState state;
  state.tensors["cpu"] = states_of_all(group, c10::kCPU);
  if (!group.device().is_cpu()) state.tensors["device"] = states_of_all(group, group.device());
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
