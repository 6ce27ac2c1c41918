// The states of all ranks are the rows of one tensor for CPUs and one for GPUs. A rank's GPU row
// begins with a byte that says whether it had a GPU.
#include "muster/checkpoint/training/generator_states.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/lock.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/tensor_bytes.h"

namespace muster {

namespace {

constexpr char kHasDevice = 1;  // the first byte of a GPU's row; ranks without a GPU have zeros

at::Generator default_generator(Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator()
                         : at::globalContext().defaultGenerator(device);
}

// The generator's lock is held, since another thread may draw numbers.
std::string state_of(Device device) {
  at::Generator generator = default_generator(device);
  const Lock lock(generator.mutex());
  return std::string(bytes_as_text(generator.get_state()));
}

// Returns a row for each rank, as long as the longest, with zeros at the ends of the others.
Tensor rows_of(const Strings& ranks) {
  int64_t longest = 0;
  for (const auto& bytes : ranks)
    longest = std::max(longest, std::ssize(bytes));
  Tensor rows = at::zeros({std::ssize(ranks), longest}, kByte);
  auto* row = rows.mutable_data_ptr<uint8_t>();
  for (const auto& bytes : ranks) {
    std::ranges::copy(bytes, row);
    row += longest;
  }
  return rows;
}

// Sets one device's generator to this rank's row. A rank that has no row starts with rank 0's, and
// a seed of its own.
void load_state_of(const ProcessGroup& group, Device device, const Tensor& rows) {
  at::Generator generator = default_generator(device);
  const Lock lock(generator.mutex());
  const bool is_known = group.rank() < rows.size(0);
  Tensor state = rows[is_known ? group.rank() : 0];
  if (!device.is_cpu()) {
    if (state[0].item<int64_t>() != kHasDevice)
      return;  // a CPU rank saved it
    state = state.slice(0, 1);
  }
  // The state gets memory of its own: LibTorch reads it from where its storage begins.
  generator.set_state(state.clone());
  if (is_known)
    return;
  generator.set_current_seed(generator.current_seed() + group.rank());
}

}  // namespace

// Some ranks may have a GPU and others none, so all of them make the same call.
SavedState generator_states(ProcessGroup& group) {
  const std::string cpu = state_of(kCPU);
  const std::string device = group.device().is_cpu() ? "" : kHasDevice + state_of(group.device());
  const auto both = group.all_gather_bytes(cpu + device, "of random generators");
  Strings cpus, devices;
  for (const auto& of_rank : both) {
    cpus.push_back(of_rank.substr(0, cpu.size()));
    devices.push_back(of_rank.substr(cpu.size()));
  }
  const bool has_any_device = any_of(devices, [](const auto& bytes) { return !bytes.empty(); });
  SavedState state;
  state.tensors["cpu"] = rows_of(cpus);
  if (has_any_device)
    state.tensors["device"] = rows_of(devices);
  return state;
}

// The CPU's generator is always there: loaders and initialisations draw from it.
void load_generator_states(const ProcessGroup& group, const SavedState& state) {
  load_state_of(group, kCPU, state.tensor("generators", "cpu"));
  // A training that was saved on GPUs and goes on on CPUs, or the other way round, has none to
  // take.
  const Tensor* const device = value_at(state.tensors, "device");
  if (!group.device().is_cpu() && device != nullptr)
    load_state_of(group, group.device(), *device);
}

}  // namespace muster
