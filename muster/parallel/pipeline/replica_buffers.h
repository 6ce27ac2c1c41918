// Gives all replicas of a pipeline the first one's buffers, as DistributedDataParallel does:
// running statistics are each rank's own after a forward. Used only by replicas.cc.
#pragma once

#include "muster/comm/process_group.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/pipeline/pipeline.h"

namespace muster {

// What must be alike on all replicas: the buffers by name, shape, type and kind of device.
Terms terms_of_buffers(const PipelineStages& stages);

// The first replica warns of the first buffer whose values differ: they may be each one's own on
// purpose. Collective: over `replicas`. Blocking: for them and the device.
void warn_of_other_buffers(const PipelineStages& stages, ProcessGroup& replicas);

// In one message per type and device. Collective: over `replicas`. Blocking: until they are here.
void take_first_buffers(const PipelineStages& stages, ProcessGroup& replicas);

}  // namespace muster
