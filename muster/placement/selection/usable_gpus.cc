#include "muster/placement/selection/usable_gpus.h"

#include <algorithm>

#include "muster/base/strings.h"

namespace muster {
namespace {

std::vector<size_t> in_index_order(const std::vector<Gpu>& gpus, Vendor vendor) {
  std::vector<size_t> order;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].vendor == vendor)
      order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return gpus[a].index.value < gpus[b].index.value;
  });
  return order;
}

bool models_differ(const std::vector<Gpu>& gpus) {
  return std::any_of(
      gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.model != gpus[0].model; });
}

size_t num_instances(const Host& host) {
  size_t count = 0;
  for (const Gpu& gpu : host.gpus)
    count += gpu.mig_enabled ? gpu.mig.size() : 0;
  return count;
}

// What variables with these settings hide of `count` devices; empty when nothing.
std::string hidden(const std::string& settings,
                   size_t shown,
                   size_t count,
                   const char* devices,
                   const std::string& remark) {
  if (shown == count)
    return "";
  return cat(settings,
             " shows ",
             shown,
             " of ",
             count,
             " ",
             devices,
             remark.empty() ? "" : cat(" (", remark, ")"));
}

// Masks that are written to hide all: by people, by Slurm and by container runtimes.
bool hides_all_on_purpose(const std::string& mask) {
  constexpr const char* kNothing[] = {"", "-1", "NoDevFiles", "none", "void"};
  return std::find(std::begin(kNothing), std::end(kNothing), trim(mask)) != std::end(kNothing);
}

std::string mask_note(const Host& host, const std::string& mask, const VisibleDevices& visible) {
  const std::string setting = cat("CUDA_VISIBLE_DEVICES='", mask, "'");
  if (!visible.mig.empty()) {
    return hidden(
        setting, visible.mig.size(), num_instances(host), "MIG instances", visible.remark);
  }
  const size_t count = in_index_order(host.gpus, Vendor::nvidia).size();
  std::string note = hidden(setting, visible.gpus.size(), count, "GPUs", visible.remark);
  // Without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA itself would count the fastest GPU first.
  if (visible.by_index && models_differ(host.gpus)) {
    note += cat(note.empty() ? setting : "",
                ": its indices are read in PCI order, as nvidia-smi counts");
  }
  return note;
}

// ROCm's variables name a GPU without an id by its number among AMD's, which beside NVIDIA's is not
// the host's number. Mostly it is a processor's own, so it is left out and not an obstacle.
bool cannot_be_named(const Host& host, const Gpu& gpu) {
  return gpu.uuid.value.starts_with(kNoUniqueId) &&
         std::any_of(host.gpus.begin(), host.gpus.end(), [](const Gpu& other) {
           return other.vendor != Vendor::amd;
         });
}

// A device that the mask shows, or why it cannot be used. Of a GPU that is split, `instance` (-1:
// each).
void add_gpu(const Host& host, size_t position, size_t ordinal, int instance, UsableGpus& usable) {
  const Gpu& gpu = host.gpus[position];
  if (cannot_be_named(host, gpu)) {
    if (!usable.mask_note.empty())
      usable.mask_note += "; ";
    usable.mask_note +=
        cat("left out GPU ", gpu.index.value, ": no unique id, by which it is told from NVIDIA's");
  } else if (gpu.health != kHealthy) {
    const std::string sick = cat("GPU ", gpu.index.value, ": ", gpu.health);
    if (usable.sick.empty() || usable.sick.back() != sick)
      usable.sick.push_back(sick);
  } else if (!gpu.mig_enabled) {
    usable.gpus.push_back({position, {static_cast<int>(ordinal)}});
  } else if (instance >= 0) {
    usable.gpus.push_back({position, {}, instance});
  } else if (gpu.mig.empty()) {
    usable.sick.push_back(cat("GPU ", gpu.index.value, ": MIG is on and there is no instance"));
  } else {
    for (size_t i = 0; i < gpu.mig.size(); ++i)
      usable.gpus.push_back({position, {}, static_cast<int>(i)});
  }
}

void add_nvidia(const Host& host, const std::optional<std::string>& mask, UsableGpus& usable) {
  std::vector<size_t> positions = in_index_order(host.gpus, Vendor::nvidia);
  if (mask && !positions.empty()) {
    const VisibleDevices visible = visible_devices(host.gpus, *mask);
    usable.mask_note = mask_note(host, *mask, visible);
    usable.mask_is_wrong = !visible.remark.empty() && !hides_all_on_purpose(*mask);
    positions = visible.gpus;
    for (const VisibleMig& mig : visible.mig) {
      add_gpu(host, mig.gpu, 0, static_cast<int>(mig.instance), usable);
    }
  }
  for (size_t i = 0; i < positions.size(); ++i)
    add_gpu(host, positions[i], i, -1, usable);
}

void add_amd(const Host& host, const VisibilityMasks& masks, UsableGpus& usable) {
  const std::vector<size_t> all = in_index_order(host.gpus, Vendor::amd);
  if (all.empty())
    return;
  std::vector<size_t> positions = all;
  std::vector<std::string> settings;
  if (masks.rocr)
    settings.push_back(cat("ROCR_VISIBLE_DEVICES='", *masks.rocr, "'"));
  const bool has_hip = masks.hip && !masks.hip->empty();
  if (has_hip)
    settings.push_back(cat("HIP_VISIBLE_DEVICES='", *masks.hip, "'"));
  if (masks.cuda && !masks.cuda->empty() && !has_hip)
    settings.push_back(cat("CUDA_VISIBLE_DEVICES='", *masks.cuda, "'"));
  if (!settings.empty()) {
    const VisibleDevices visible = visible_rocm_devices(host.gpus, masks);
    positions = visible.gpus;
    const std::string note =
        hidden(join(settings, " "), positions.size(), all.size(), "GPUs", visible.remark);
    if (!note.empty() && !usable.mask_note.empty())
      usable.mask_note += "; ";
    usable.mask_note += note;
    const auto& last = has_hip ? masks.hip : masks.cuda;
    const bool on_purpose =
        hides_all_on_purpose(masks.rocr.value_or("0")) || hides_all_on_purpose(last.value_or("0"));
    usable.mask_is_wrong |= !visible.remark.empty() && !on_purpose;
  }
  for (size_t i = 0; i < positions.size(); ++i)
    add_gpu(host, positions[i], i, -1, usable);
}

}  // namespace

UsableGpus usable_gpus(const Host& host, const VisibilityMasks& masks) {
  UsableGpus usable;
  add_nvidia(host, masks.cuda, usable);
  add_amd(host, masks, usable);
  return usable;
}

std::string describe(const Host& host, const UsableGpus& usable) {
  std::vector<int> indices;
  size_t instances = 0;
  for (const UsableGpu& gpu : usable.gpus) {
    const int index = host.gpus[gpu.position].index.value;
    if (gpu.mig >= 0)
      ++instances;
    if (indices.empty() || indices.back() != index)
      indices.push_back(index);
  }
  std::string text = cat("host ", host.name, " has ");
  text += indices.empty() ? "no usable GPU"
                          : cat("GPU", indices.size() == 1 ? " " : "s ", join(indices, ", "));
  if (instances > 0)
    text += cat(" (", instances, " MIG instances)");
  if (!usable.sick.empty())
    text += cat("; left out: ", join(usable.sick, ", "));
  if (!usable.mask_note.empty())
    text += cat("; ", usable.mask_note);
  if (host.gpus.empty() && !host.gpu_note.empty())
    text += cat(": ", host.gpu_note);
  return text;
}

}  // namespace muster
