// What people set of NCCL. Everything else has NCCL's own variables (NCCL_DEBUG, NCCL_SOCKET_IFNAME, …).
#pragma once

namespace muster {

struct NcclOptions {
  // Collectives run before other kernels that wait for the GPU. TORCH_NCCL_HIGH_PRIORITY=1 does the same.
  bool high_priority_stream = false;
  // Sub-groups use their parent's connections (ncclCommSplit): they are made in milliseconds, with less
  // memory.
  bool split = true;
};

}  // namespace muster
