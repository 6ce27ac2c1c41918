// The workers' side of a parameter server. A worker asks each server for its shard, computes
// gradients, and sends each server those of its shard. A server that does not answer is the end of
// the run, since nobody else has its parameters.
#include "muster/parallel/averaging/parameter_client.h"

#include <string>

#include <ATen/Functions.h>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/optim/each_once.h"
#include "muster/parallel/averaging/parameter_link.h"

namespace muster {

// Workers and servers construct their sides together, since both take part in making the groups.
ParameterClient::ParameterClient(const GivenParameters& parameters,
                                 ProcessGroup group,
                                 const ParameterServerOptions& options)
    : options_(options),
      rank_(group.job_rank()),
      job_ranks_(group.job_ranks()),
      model_(parameters.model) {
  // The comparison in connect_parameter_pairs() refuses a client on a server's rank, on all ranks.
  const std::string wrong = keeps_parameters(group, options)
                                ? cat("parameter server: expected a ParameterServer on rank ",
                                      rank_,
                                      ", got a ParameterClient; ask ",
                                      "keeps_parameters() which one to make")
                                : "";
  const Tensors distinct = optim::each_once(parameters.tensors);
  servers_ = connect_parameter_pairs(group, distinct, options, wrong);
  shards_ = parameter_shards(distinct, options.servers);
}

void ParameterClient::require_parameters() const {
  for (const Tensors& shard : shards_)
    require_present("ParameterClient", model_, shard);
}

// Every error names the call and the server.
void ParameterClient::with_each_server(const char* call,
                                       const std::function<void(size_t server)>& talk) {
  // No servers are left after finish(), which closes the pairs.
  if (servers_.empty()) {
    throw failed_precondition("ParameterClient: expected no ",
                              call,
                              " after finish(), got one (rank ",
                              rank_,
                              "); remove it");
  }
  for (const size_t server : indices_of(servers_)) {
    try {
      talk(server);
    } catch (const Error& error) {
      throw Error(error.code(),
                  "ParameterClient: ",
                  call,
                  " on rank ",
                  rank_,
                  ": expected server rank ",
                  job_ranks_[server],
                  " to answer, got: ",
                  error.message(),
                  "; its parameters are lost: start again from a checkpoint");
    }
  }
}

// All servers are asked before the first answer is awaited.
void ParameterClient::pull() {
  require_parameters();
  with_each_server("pull",
                   [&](size_t server) { send_request(servers_[server], ParameterRequest::pull); });
  with_each_server("pull",
                   [&](size_t server) { receive_tensors(servers_[server], 0, shards_[server]); });
  pulled_ = true;
}

// A server knows a gradient by its place in the shard. Parameters without a gradient are not sent.
void ParameterClient::push() {
  require_parameters();
  if (!pulled_) {
    throw failed_precondition(
        "ParameterClient: expected a pull between two pushes, got none (rank ",
        rank_,
        ", push ",
        steps_,
        "); pull before every forward");
  }
  with_each_server("push", [&](size_t server) {
    Tensors gradients;
    Int64s which;
    for (const int64_t i : indices_below(std::ssize(shards_[server]))) {
      const Tensor& gradient = shards_[server][i].grad();
      if (!gradient.defined())
        continue;
      gradients.push_back(gradient.is_sparse() ? gradient.detach().to_dense() : gradient.detach());
      which.push_back(i);
    }
    send_request(servers_[server], ParameterRequest::push);
    send_numbers(servers_[server], 0, which);
    send_tensors(servers_[server], 0, gradients);
  });
  pulled_ = false;
  ++steps_;
}

// A server that hears of the finish waits for this worker no longer.
void ParameterClient::finish() {
  with_each_server("finish", [&](size_t server) {
    send_request(servers_[server], ParameterRequest::finish);
    servers_[server].shutdown();
  });
  servers_.clear();
}

}  // namespace muster
