// Asynchronous SGD with a parameter server. Workers pull parameters, compute gradients and push
// them, without waiting for each other; servers keep the parameters and step the optimizer.
//
//   const muster::ParameterServerOptions options{.servers = 2, .staleness = 4};
//   if (muster::keeps_parameters(group, options)) {
//     muster::ParameterServer server(*net, group, [](auto shard) {
//       return std::make_unique<torch::optim::SGD>(shard, 0.1);
//     }, options);
//     server.serve();
//   } else {
//     muster::ParameterClient client(*net, group, options);
//     for (…) {
//       client.pull();
//       optimizer.zero_grad();
//       loss_of(net, batch).backward();
//       client.push();
//     }
//     client.finish();
//   }
//
// The group's first ranks are the servers; each keeps whole parameters, about the same number of
// bytes. Every server and worker use their own group, so the death of one does not break other
// connections. Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server"
// (2014); Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
// Server" (2013).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/averaging/given_parameters.h"

namespace muster {

inline constexpr int64_t kAnyStaleness = std::numeric_limits<int64_t>::max();

// The same on every rank.
struct ParameterServerOptions {
  int servers = 1;  // the first ranks of the group; the others are workers
  // How many steps a worker may be ahead of the slowest; beyond that, pull() waits. 0: synchronous,
  // with one update per step, using the mean of the gradients in rank order. Otherwise every
  // gradient is an update.
  int64_t staleness = 4;
  // Divide the learning rate of an update by 1 + the updates since its worker's pull.
  bool weigh_by_staleness = false;
};

// What happened during serve().
struct ParameterServerReport {
  int64_t updates = 0;
  int64_t largest_lead = 0;       // most steps that a worker was ahead of the slowest at a pull
  int64_t largest_staleness = 0;  // most updates between a worker's pull and its push
  std::vector<int> lost{};        // workers that died or left, by rank in the group
};

// Whether this rank is a server.
bool keeps_parameters(const ProcessGroup& group, const ParameterServerOptions& options);

class ParameterServer : NoCopy {
 public:
  using MakeOptimizer =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> shard)>;
  // Called before each update, counted from 0; can set the learning rate.
  using BeforeUpdate = std::function<void(torch::optim::Optimizer& optimizer, int64_t update)>;

  // `parameters`, a list or a model's, are the same on every rank; those of this server's shard are
  // trained in place.
  // Collective: over the group, together with the workers' ParameterClient.
  // Throws: invalid_argument, on every rank, for no server, no worker, more servers than
  // parameters, a negative staleness, and for parameters or options that differ; whatever `make`
  // throws.
  ParameterServer(const GivenParameters& parameters,
                  ProcessGroup group,
                  const MakeOptimizer& make,
                  const ParameterServerOptions& options = {});
  ~ParameterServer();

  // Serves the workers until each has finished or is lost. A lost worker is logged, and the others
  // go on. Blocking: until then. Throws: failed_precondition for a module of the model that was
  // replaced; peer_failed if all are lost; whatever the optimizer throws.
  ParameterServerReport serve(const BeforeUpdate& before_update = {});

  torch::optim::Optimizer& optimizer();

 private:
  struct State;  // parameter_server.cc
  std::unique_ptr<State> state_;
};

}  // namespace muster
