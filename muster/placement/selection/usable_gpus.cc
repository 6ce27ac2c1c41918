// Each vendor's GPUs are looked at by themselves: in the order of their indices, or as the vendor's
// variables show them. A GPU that is shown and cannot be used is told of in the errors that follow.
#include "muster/placement/selection/usable_gpus.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {
namespace {

// Returns the positions of a vendor's GPUs, in the order of their indices.
Indices in_index_order(const Gpus& gpus, Vendor vendor) {
  Indices order = filtered_indices(gpus.size(), [&](size_t i) { return gpus[i].vendor == vendor; });
  std::ranges::sort(order, {}, [&](size_t position) { return gpus[position].index; });
  return order;
}

bool models_differ(const Gpus& gpus) {
  return distinct(gpus, &Gpu::model).size() > 1;
}

size_t num_instances(const Host& host) {
  return sum_of<size_t>(host.gpus,
                        [](const Gpu& gpu) { return gpu.mig_enabled ? gpu.mig.size() : 0; });
}

// Says what variables with these settings hide of `count` GPUs or instances; "" if nothing.
std::string note_of_hidden(const std::string& settings,
                           size_t shown,
                           size_t count,
                           const char* devices,
                           const std::string& remark) {
  if (shown == count)
    return framed(cat(settings, ": "), remark);
  return cat(settings, " shows ", shown, " of ", count, " ", devices, framed(" (", remark, ")"));
}

// People, Slurm and container runtimes write these masks to hide all.
bool hides_all_on_purpose(const std::string& mask) {
  constexpr std::string_view kNothing[] = {"", "-1", "NoDevFiles", "none", "void"};
  return contains(kNothing, trim(mask));
}

// Returns the setting of a variable, as a shell would have it.
std::string setting_of(const char* variable, const std::string& mask) {
  return cat(variable, "='", mask, "'");
}

std::string mask_note(const Host& host, const std::string& mask, const VisibleDevices& visible) {
  const auto setting = setting_of("CUDA_VISIBLE_DEVICES", mask);
  if (!visible.mig.empty()) {
    return note_of_hidden(
        setting, visible.mig.size(), num_instances(host), "MIG instances", visible.remark);
  }
  const size_t count = in_index_order(host.gpus, Vendor::nvidia).size();
  const auto note = note_of_hidden(setting, visible.gpus.size(), count, "GPUs", visible.remark);
  // Without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA itself would count the fastest GPU first.
  if (visible.by_index && models_differ(host.gpus))
    return text_or(note, setting) + ": its indices are read in PCI order, as nvidia-smi counts";
  return note;
}

// ROCm's variables name a GPU without an id by its number among AMD's, which beside NVIDIA's is not
// the host's number. Mostly it is a processor's own, so it is left out and not an obstacle.
bool cannot_be_named(const Host& host, const Gpu& gpu) {
  const bool has_others =
      any_of(host.gpus, [](const Gpu& other) { return other.vendor != Vendor::amd; });
  return has_others && gpu.uuid.value.starts_with(kNoUniqueId);
}

void add_note(UsableGpus& usable, const std::string& note) {
  if (!note.empty() && !usable.mask_note.empty())
    usable.mask_note += "; ";
  usable.mask_note += note;
}

// A GPU whose instances are shown one by one would be told of for each of them.
void add_sick(UsableGpus& usable, const std::string& sick) {
  if (usable.sick.empty() || usable.sick.back() != sick)
    usable.sick.push_back(sick);
}

// Adds a device that the mask shows, or why it cannot be used. A GPU that is split adds `instance`,
// or with -1 each of its instances.
void add_gpu(const Host& host, size_t position, int ordinal, int instance, UsableGpus& usable) {
  const Gpu& gpu = host.gpus[position];
  const auto name = cat("GPU ", gpu.index.value);
  if (cannot_be_named(host, gpu)) {
    add_note(usable, cat("left out ", name, ": no unique id, by which it is told from NVIDIA's"));
  } else if (gpu.health != kHealthy) {
    add_sick(usable, cat(name, ": ", gpu.health));
  } else if (!gpu.mig_enabled) {
    usable.gpus.push_back({position, {ordinal}});
  } else if (instance >= 0) {
    usable.gpus.push_back({position, {}, instance});
  } else if (gpu.mig.empty()) {
    add_sick(usable, cat(name, ": MIG is on and there is no instance"));
  } else {
    for (const int i : int_indices_of(gpu.mig))
      usable.gpus.push_back({position, {}, i});
  }
}

// Adds the GPUs at these positions, in the order in which a process sees them.
void add_gpus(const Host& host, const Indices& positions, UsableGpus& usable) {
  int ordinal = 0;
  for (const size_t position : positions)
    add_gpu(host, position, ordinal++, -1, usable);
}

// A mask of MIG instances shows them and no whole GPU.
void add_nvidia(const Host& host, const std::optional<std::string>& mask, UsableGpus& usable) {
  Indices positions = in_index_order(host.gpus, Vendor::nvidia);
  if (mask && !positions.empty()) {
    const VisibleDevices visible = visible_devices(host.gpus, *mask);
    usable.mask_note = mask_note(host, *mask, visible);
    usable.mask_is_wrong = !visible.remark.empty() && !hides_all_on_purpose(*mask);
    positions = visible.gpus;
    for (const VisibleMig& mig : visible.mig)
      add_gpu(host, mig.gpu, 0, static_cast<int>(mig.instance), usable);
  }
  add_gpus(host, positions, usable);
}

// A mask of HIP's that is empty hides nothing, and one of ROCr's all.
void add_amd(const Host& host, const VisibilityMasks& masks, UsableGpus& usable) {
  const Indices all = in_index_order(host.gpus, Vendor::amd);
  if (all.empty())
    return;
  const HipMask hip = hip_mask(masks);
  Strings settings;
  if (masks.rocr)
    settings.push_back(setting_of("ROCR_VISIBLE_DEVICES", *masks.rocr));
  if (!hip.value.value_or("").empty())
    settings.push_back(setting_of(hip.variable, *hip.value));
  if (settings.empty())
    return add_gpus(host, all, usable);
  const VisibleDevices visible = visible_rocm_devices(host.gpus, masks);
  add_note(
      usable,
      note_of_hidden(join(settings, " "), visible.gpus.size(), all.size(), "GPUs", visible.remark));
  const bool on_purpose = hides_all_on_purpose(masks.rocr.value_or("0")) ||
                          hides_all_on_purpose(hip.value.value_or("0"));
  usable.mask_is_wrong |= !visible.remark.empty() && !on_purpose;
  add_gpus(host, visible.gpus, usable);
}

}  // namespace

UsableGpus usable_gpus(const Host& host, const VisibilityMasks& masks) {
  UsableGpus usable;
  add_nvidia(host, masks.cuda, usable);
  add_amd(host, masks, usable);
  return usable;
}

std::string describe(const Host& host, const UsableGpus& usable) {
  const Ints indices = distinct(
      usable.gpus, [&](const UsableGpu& gpu) { return host.gpus[gpu.position].index.value; });
  const auto instances = std::ranges::count_if(usable.gpus, &UsableGpu::is_instance);
  const auto gpus = framed(word_for(indices.size(), "GPU ", "GPUs "), join(indices, ", "));
  auto text = cat("host ", host.name, " has ", text_or(gpus, "no usable GPU"));
  text += framed(" (", text_of_count(instances), " MIG instances)");
  text += framed("; left out: ", join(usable.sick, ", "));
  text += framed("; ", usable.mask_note);
  if (host.gpus.empty())
    text += framed(": ", host.gpu_note);
  return text;
}

}  // namespace muster
