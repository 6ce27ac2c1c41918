// Makes LibTorch's NCCL backend. CUDA and NCCL live in their own shared library, muster_cuda, which
// is loaded here when the first CUDA device is assigned: one build of a program runs with and
// without GPUs.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

struct NcclGroup;  // plugin.h

// Loads muster_cuda and makes `device` the current CUDA device, before anything else on that
// device; returns its UUID. Throws: unavailable saying what is missing (the library, a driver, the
// device).
std::string use_cuda_device(Device device);

// Returns the GPU's domain, bus and number on the bus, as "0:59:0". A MIG instance has its GPU's.
std::string pci_address(Device device);

// A thread that only asks `device` about work of others calls it. It uses no other device then, and
// a capture of a CUDA graph in another thread does not mind its questions. Without muster_cuda it
// does nothing.
void begin_gpu_thread(Device device) noexcept;

// NCCL's version, "2.27.3". Throws: unavailable without muster_cuda.
std::string nccl_version();

// NCCL over `store`. Collective: over the group's ranks, or with a parent over the parent's.
// Blocking: until all have connected. Throws: unavailable without muster_cuda; backend_failed.
BackendPtr make_nccl(const StorePtr& store, const NcclGroup& group);

// The ranks of `parent` that are not in the group that the others make of it call it. Collective:
// over the parent's ranks.
void stay_out_of_split(c10d::Backend& parent, Device device);

}  // namespace muster
