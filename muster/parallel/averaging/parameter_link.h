// What servers and workers of a parameter server share: who keeps what, their groups of two, their
// messages. Only for parameter_server.cc and parameter_client.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/averaging/parameter_server.h"

namespace muster {

// The parameters of each server: the largest first, each to the server with the fewest bytes;
// within a shard in the model's order.
TensorLists parameter_shards(const Tensors& parameters, int servers);

// This rank's groups of two: a server's with each worker, a worker's with each server. The server
// is rank 0 of a pair. `wrong`: as require_agreement. Collective: over the group. Throws: as
// ParameterServer.
std::vector<ProcessGroup> connect_parameter_pairs(ProcessGroup& group,
                                                  const Tensors& parameters,
                                                  const ParameterServerOptions& options,
                                                  const std::string& wrong);

enum class ParameterRequest : int64_t { pull = 1, push = 2, finish = 3 };

// A request precedes what it announces.
void send_request(ProcessGroup& server, ParameterRequest request);
ParameterRequest receive_request(ProcessGroup& worker);

// Sends the count, then the numbers.
void send_numbers(ProcessGroup& pair, int to, const Int64s& numbers);
Int64s receive_numbers(ProcessGroup& pair, int from);

// All elements, lot by lot, through host memory. Both sides have tensors of the same types and
// shapes.
void send_tensors(ProcessGroup& pair, int to, const Tensors& tensors);
void receive_tensors(ProcessGroup& pair, int from, const Tensors& tensors);

}  // namespace muster
