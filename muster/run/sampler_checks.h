// The checks by which the ranks of a job compare their samplers, when one begins its first epoch.
// Each is a collective.
#pragma once

#include <cstdint>
#include <functional>

#include "muster/comm/process_group.h"
#include "muster/data/sampler_identity.h"

namespace muster {

using SamplerCheck = std::function<void(const SamplerIdentity&)>;

// Every rank gets the samplers of all ranks, so all find the same difference.
SamplerCheck check_of_samplers(ProcessGroup group);

// Compares all but the ranks' places, for ranks of a mesh, some of which have the same samples.
SamplerCheck check_of_mesh_samplers(ProcessGroup all, int64_t replicas);

// For training loaders that the program made itself (own_loaders.h). Those over all ranks are
// compared; of one that gives each rank everything, rank 0 warns once.
SamplerCheck check_of_own_loaders(ProcessGroup group);

}  // namespace muster
