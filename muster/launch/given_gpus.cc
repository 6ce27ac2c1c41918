// What a scheduler names becomes CUDA_VISIBLE_DEVICES of this process, as if the scheduler had
// hidden the others itself.
#include "muster/launch/given_gpus.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/probe.h"
#include "muster/device/visible_devices.h"

namespace muster {

namespace {

constexpr auto kMask = "CUDA_VISIBLE_DEVICES";
constexpr auto kOfSlurm = "SLURM_STEP_GPUS";
constexpr auto kOfContainer = "NVIDIA_VISIBLE_DEVICES";

bool names_devices(const std::string& text) {
  return text.starts_with("GPU-") || text.starts_with("MIG-");
}

// What a scheduler has said, whatever GPUs there are. An empty CUDA_VISIBLE_DEVICES hides all.
std::optional<GivenGpus> told_gpus() {
  if (std::getenv(kMask) != nullptr)
    return std::nullopt;
  if (const auto indices = get_env(kOfSlurm))
    return GivenGpus{.variable = kOfSlurm, .mask = *indices};
  const auto uuids = get_env(kOfContainer);
  if (uuids && names_devices(*uuids))
    return GivenGpus{.variable = kOfContainer, .mask = *uuids};
  return std::nullopt;
}

// Whether this process has set the mask by itself.
bool is_kept = false;

size_t num_instances_of(const Host& host) {
  return sum_of<size_t>(host.gpus, [](const Gpu& gpu) { return gpu.mig.size(); });
}

}  // namespace

std::optional<GivenGpus> given_gpus(const Host& host) {
  const auto told = told_gpus();
  if (!told)
    return std::nullopt;
  const VisibleDevices visible = visible_devices(host.gpus, told->mask);
  if (!visible.remark.empty())
    return std::nullopt;
  const auto gpus = std::ranges::count(host.gpus, Vendor::nvidia, &Gpu::vendor);
  const bool hides_gpus = visible.mig.empty() && std::cmp_less(visible.gpus.size(), gpus);
  const bool hides_instances =
      !visible.mig.empty() && (visible.mig.size() < num_instances_of(host) || gpus > 1);
  return hides_gpus || hides_instances ? told : std::nullopt;
}

void keep_to_given_gpus() {
  if (!told_gpus())
    return;
  const Inventory machine = probe_this_machine();
  const auto given = given_gpus(machine.hosts[0]);
  if (!given)
    return;
  ::setenv(kMask, given->mask.c_str(), 1);
  is_kept = true;
  log_info(given->variable,
           "='",
           given->mask,
           "' names fewer GPUs than this process sees, and ",
           kMask,
           " is not set: muster keeps to them; set ",
           kMask,
           " for other ones");
}

void forget_given_gpus(Environment& environment) {
  if (is_kept)
    environment.erase(kMask);
}

}  // namespace muster
