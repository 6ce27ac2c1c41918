#include "muster/comm/init.h"

#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/comm/group_state.h"
#include "muster/comm/nccl.h"
#include "muster/comm/rendezvous.h"

namespace muster {

namespace {

std::string backend_asked(const InitOptions& options) {
  const std::string told = get_env("MUSTER_BACKEND").value_or("auto");
  std::string asked = told == "auto" ? options.backend : told;
  if (asked != "auto" && asked != "gloo" && asked != "nccl") {
    throw Error(ErrorCode::invalid_argument, cat("backend: expected auto, gloo or nccl, got '", asked, "'"));
  }
  return asked;
}

ProcessGroup join_and_make(const Rendezvous& meeting, const InitOptions& options) {
  const std::string asked = backend_asked(options);
  std::string device = options.device.str();
  if (options.device.is_cuda()) {
    device = use_cuda_device(options.device);
  } else if (asked == "nccl") {
    throw Error(ErrorCode::invalid_argument,
                cat("backend: expected a CUDA device for nccl, got ", options.device.str(), " (rank ",
                    meeting.rank, "); use gloo or auto"));
  }
  const Member self{.rank = meeting.rank,
                    .world_size = meeting.world_size,
                    .host = host_identity(),
                    .pid = ::getpid(),
                    .device = device,
                    .backend = asked,
                    .libtorch = TORCH_VERSION};
  const auto world = c10::make_intrusive<c10d::PrefixStore>("world", meeting.store);
  const int64_t generation = next_generation(*world, meeting.world_size);
  c10d::PrefixStore members_of(cat("members/", generation), meeting.store);
  const auto members = join(members_of, self, options.init_timeout);
  const std::string backend = choose_backend(members, asked);
  if (options.device.is_cuda() && backend == "gloo" && meeting.rank == 0) {
    log(LogLevel::info,
        "process group: Gloo, CUDA tensors staged through host memory (a rank without a GPU of its own)");
  }
  return make_process_group(world, meeting.rank, meeting.world_size,
                            {.backend = backend,
                             .device = options.device,
                             .timeout = options.timeout,
                             .master_addr = meeting.master_addr});
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options) {
  return join_and_make(open_rendezvous(options), options);
}

ProcessGroup init_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                const InitOptions& options) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("init_process_group: expected 0 <= rank < world_size, got rank ", rank, " of ", world_size));
  }
  return join_and_make({.store = store, .rank = rank, .world_size = world_size, .master_addr = ""}, options);
}

}  // namespace muster
