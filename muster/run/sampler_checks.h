// The checks by which the ranks of a job compare their samplers, when one begins its first epoch,
// and the ends of their streams. The former are collectives.
#pragma once

#include <cstdint>
#include <functional>

#include "muster/comm/process_group.h"
#include "muster/data/own_loaders.h"
#include "muster/data/sampler_identity.h"

namespace muster {

// Every rank gets the samplers of all ranks, so all find the same difference.
SamplerCheck check_of_samplers(ProcessGroup group);

// Compares all but the ranks' places, for ranks of a mesh, some of which have the same samples.
SamplerCheck check_of_mesh_samplers(ProcessGroup all, int64_t replicas);

// For training loaders that the program made itself (own_loaders.h). Those over all ranks are
// compared; of one that gives each rank everything, rank 0 warns once.
SamplerCheck check_of_own_loaders(ProcessGroup group);

// Of ranks that have read other numbers of batches of an epoch, the first to know warns, once. They
// tell each other by the store: a rank that others wait for would not come to a collective.
// Blocking: for the store.
std::function<void(const StreamEnd&)> check_of_stream_ends(ProcessGroup group);

}  // namespace muster
