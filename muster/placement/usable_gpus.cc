#include "muster/placement/usable_gpus.h"

#include <algorithm>
#include <numeric>

#include "muster/base/strings.h"
#include "muster/device/visible_devices.h"

namespace muster {
namespace {

std::vector<size_t> in_index_order(const std::vector<Gpu>& gpus) {
  std::vector<size_t> order(gpus.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return gpus[a].index.value < gpus[b].index.value; });
  return order;
}

bool models_differ(const std::vector<Gpu>& gpus) {
  return std::any_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.model != gpus[0].model; });
}

std::string mask_note(const Host& host, const std::string& mask, const VisibleDevices& visible) {
  std::string note;
  if (visible.gpus.size() < host.gpus.size()) {
    note = cat("CUDA_VISIBLE_DEVICES='", mask, "' shows ", visible.gpus.size(), " of ", host.gpus.size(),
               " GPUs");
    if (!visible.remark.empty()) note += cat(" (", visible.remark, ")");
  }
  // Without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA itself would count the fastest GPU first.
  if (visible.by_index && models_differ(host.gpus)) {
    note += cat(note.empty() ? "CUDA_VISIBLE_DEVICES='" + mask + "'" : "",
                ": its indices are read in PCI order, as nvidia-smi counts");
  }
  return note;
}

}  // namespace

UsableGpus usable_gpus(const Host& host, const std::optional<std::string>& mask) {
  UsableGpus usable;
  std::vector<size_t> visible_positions;
  if (mask) {
    const VisibleDevices visible = visible_devices(host.gpus, *mask);
    usable.mask_note = mask_note(host, *mask, visible);
    visible_positions = visible.gpus;
  } else {
    visible_positions = in_index_order(host.gpus);
  }
  for (size_t i = 0; i < visible_positions.size(); ++i) {
    const Gpu& gpu = host.gpus[visible_positions[i]];
    if (gpu.health == kHealthy) {
      usable.gpus.push_back({visible_positions[i], {static_cast<int>(i)}});
    } else {
      usable.sick.push_back(cat("GPU ", gpu.index.value, ": ", gpu.health));
    }
  }
  return usable;
}

std::string describe(const Host& host, const UsableGpus& usable) {
  std::vector<int> indices;
  for (const UsableGpu& gpu : usable.gpus) indices.push_back(host.gpus[gpu.position].index.value);
  std::string text = cat("host ", host.name, " has ");
  text +=
      indices.empty() ? "no usable GPU" : cat("GPU", indices.size() == 1 ? " " : "s ", join(indices, ", "));
  if (!usable.sick.empty()) text += cat("; left out: ", join(usable.sick, ", "));
  if (!usable.mask_note.empty()) text += cat("; ", usable.mask_note);
  if (host.gpus.empty() && !host.gpu_note.empty()) text += cat(": ", host.gpu_note);
  return text;
}

}  // namespace muster
