// Which of this machine's GPUs a scheduler has given this job, where it names them and hides none:
// Slurm where its gres.conf sets no CUDA_VISIBLE_DEVICES, Kubernetes in a privileged pod.
#pragma once

#include <optional>
#include <string>

#include "muster/base/rank_env.h"
#include "muster/device/inventory.h"

namespace muster {

struct GivenGpus {
  std::string variable{};  // which says so
  std::string mask{};      // as CUDA_VISIBLE_DEVICES has it
};

// What the environment says, if these are fewer than the host's GPUs. Nothing where
// CUDA_VISIBLE_DEVICES is set, which then says it, and where the names are not of the GPUs that
// this process sees: a site that hides the others numbers them anew.
// Source: Slurm, srun(1), SLURM_STEP_GPUS (indices); NVIDIA's device plugin and container toolkit,
// NVIDIA_VISIBLE_DEVICES (UUIDs, of which alone something follows here).
std::optional<GivenGpus> given_gpus(const Host& host);

// Sets CUDA_VISIBLE_DEVICES for this process and those that it starts, and says so. For commands
// that use all GPUs there are; asks the driver only if a scheduler has named any.
void keep_to_given_gpus();

// Takes that out of an environment which is for other hosts.
void forget_given_gpus(Environment& environment);

}  // namespace muster
