// What people set of NCCL. Everything else has NCCL's own variables (NCCL_DEBUG, NCCL_SOCKET_IFNAME, …).
#pragma once

namespace muster {

struct NcclOptions {
  // Collectives run before other kernels that wait for the GPU. TORCH_NCCL_HIGH_PRIORITY=1 does the same.
  bool high_priority_stream = false;
  // Sub-groups are split from their parent's communicator (ncclCommSplit), which is faster than connecting
  // anew. While new_group() is called, no other thread may use the parent.
  bool split = true;
  // NCCL's calls return at once, and LibTorch waits for them with a limit: the longer of init_timeout and the
  // collective timeout, or TORCH_NCCL_NONBLOCKING_TIMEOUT (seconds). Without it ranks that cannot connect
  // wait in NCCL itself. TORCH_NCCL_USE_COMM_NONBLOCKING=1 does the same.
  bool nonblocking = false;
};

}  // namespace muster
