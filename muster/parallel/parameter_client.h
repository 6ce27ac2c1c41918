// The worker's side of a parameter server (parameter_server.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/parameter_server.h"

namespace muster {

class ParameterClient {
 public:
  // Collective and throws: as ParameterServer.
  ParameterClient(std::vector<at::Tensor> parameters, ProcessGroup group,
                  const ParameterServerOptions& options = {});

  // The parameters take the servers' values. Blocking: while this worker is more than `staleness` steps ahead
  // of the slowest. Throws: peer_failed when a server has died.
  void pull();

  // Sends the gradients that are there. One that only other workers of a synchronous step have counts as 0
  // here; a parameter that nobody has one of, as a frozen one, the optimizer leaves out. Throws:
  // failed_precondition without a pull since the last push; peer_failed when a server has died.
  void push();

  // Tells the servers that no push will follow; later calls are errors. Throws: peer_failed.
  void finish();

  int64_t steps() const { return steps_; }  // pushes

 private:
  void with_each_server(const char* call, const std::function<void(size_t server)>& talk);

  ParameterServerOptions options_;
  int rank_;
  std::vector<ProcessGroup> servers_;
  std::vector<std::vector<at::Tensor>> shards_;
  int64_t steps_ = 0;
  bool pulled_ = false;
};

}  // namespace muster
