// The NCCL settings that people change. For everything else use NCCL's own variables (NCCL_DEBUG,
// NCCL_SOCKET_IFNAME, …).
#pragma once

namespace muster {

struct NcclOptions {
  // Collectives run ahead of other kernels waiting for the GPU. TORCH_NCCL_HIGH_PRIORITY=1 does the
  // same.
  bool high_priority_stream = false;
  // Splits subgroups off their parent's communicator (ncclCommSplit), which is faster than
  // connecting anew. During new_group() no other thread may use the parent.
  bool split = true;
  // NCCL calls return at once, and LibTorch waits for them with a timeout: the longer of
  // init_timeout and the collective timeout, or TORCH_NCCL_NONBLOCKING_TIMEOUT (seconds). If false,
  // ranks that cannot connect hang inside NCCL. TORCH_NCCL_USE_COMM_NONBLOCKING=1 does the same.
  bool nonblocking = false;
};

}  // namespace muster
