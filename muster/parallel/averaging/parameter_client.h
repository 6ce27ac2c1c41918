// The worker's side of a parameter server (parameter_server.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/averaging/parameter_server.h"

namespace muster {

class ParameterClient {
 public:
  // Collective, Throws: as ParameterServer. Later calls throw failed_precondition, as LocalSGD's.
  ParameterClient(const GivenParameters& parameters,
                  ProcessGroup group,
                  const ParameterServerOptions& options = {});

  // Sets the parameters to the servers' values. Blocking: while this worker is more than
  // `staleness` steps ahead of the slowest. Throws: peer_failed if a server has died.
  void pull();

  // Sends the present gradients. In a synchronous step, a gradient that only other workers have
  // counts as 0 here; a parameter without a gradient on any worker (a frozen one) is not stepped.
  // Throws: failed_precondition without a pull since the last push; peer_failed if a server has
  // died.
  void push();

  // Tells the servers that no more pushes follow; later calls are errors. Throws: peer_failed.
  void finish();

  int64_t steps() const { return steps_; }  // pushes

 private:
  void require_parameters() const;
  void with_each_server(const char* call, const std::function<void(size_t server)>& talk);

  ParameterServerOptions options_;
  int rank_;                    // this one's number in the job, which messages use
  std::vector<int> job_ranks_;  // those of the group
  std::vector<ProcessGroup> servers_;
  std::shared_ptr<const TensorsOfModel> model_;
  std::vector<Tensors> shards_;
  int64_t steps_ = 0;
  bool pulled_ = false;
};

}  // namespace muster
