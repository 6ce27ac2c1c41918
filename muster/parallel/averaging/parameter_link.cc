// What servers and workers of a parameter server share. The shards follow from the parameters'
// sizes, so both sides compute them and nothing is sent about them. Each server talks with each
// worker in a group of two, which a lost rank breaks without breaking the others.
#include "muster/parallel/averaging/parameter_link.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/averaging/average.h"

namespace muster {

namespace {

// Returns what is wrong with the options, or nothing.
std::string wrong_parameter_options(const ParameterServerOptions& options,
                                    int ranks,
                                    size_t parameters) {
  const auto wrong = [](const std::string& expected, const std::string& got, const char* next) {
    return cat("parameter server: expected ", expected, ", got ", got, "; ", next);
  };
  if (options.servers < 1)
    return wrong(
        "1 server or more", cat(options.servers), "the first ranks of the group become servers");
  if (options.servers >= ranks)
    return wrong("a worker beside the servers",
                 cat(options.servers, " servers of ", ranks, " ranks"),
                 "use fewer servers or more ranks");
  if (std::cmp_greater(options.servers, parameters))
    return wrong("a parameter or more for each server",
                 cat(options.servers, " servers and ", parameters, " parameters"),
                 "use fewer servers");
  if (options.staleness < 0)
    return wrong("a staleness of 0 steps or more",
                 cat(options.staleness),
                 "0 is synchronous, kAnyStaleness never waits");
  return "";
}

// The ranks of a pair.
constexpr int kServer = 0;
constexpr int kWorker = 1;

// send() takes only tensors, so a number travels as a tensor of one element.
void send_number(ProcessGroup& pair, int to, int64_t number) {
  pair.send(at::full({1}, number, kLong), to);
}

int64_t receive_number(ProcessGroup& pair, int from) {
  const Tensor number = at::empty({1}, kLong);
  pair.recv(number, from);
  return number.item<int64_t>();
}

}  // namespace

// The first ranks of the group are the servers, so each rank knows every other's role.
bool keeps_parameters(const ProcessGroup& group, const ParameterServerOptions& options) {
  return group.rank() < options.servers;
}

// The largest parameters are given out first, each to the server that has the fewest bytes. The
// sort is stable and ties go to the first server, so all ranks compute the same shards.
TensorLists parameter_shards(const Tensors& parameters, int servers) {
  Indices by_size = numbers_below(parameters.size());
  std::ranges::stable_sort(
      by_size, std::greater<>(), [&](size_t i) { return parameters[i].nbytes(); });
  Indices bytes(servers, 0);
  Indices server_of(parameters.size());
  for (const size_t i : by_size) {
    const auto least = std::ranges::min_element(bytes);
    // An empty parameter counts as a byte, so that many of them are spread too.
    *least += std::max<size_t>(parameters[i].nbytes(), 1);
    server_of[i] = least - bytes.begin();
  }
  // A shard keeps its parameters in the model's order.
  TensorLists shards(servers);
  for (const size_t i : indices_of(parameters))
    shards[server_of[i]].push_back(parameters[i]);
  return shards;
}

// All ranks of the group call it. A server gets a pair for each worker, and a worker one for each
// server.
std::vector<ProcessGroup> connect_parameter_pairs(ProcessGroup& group,
                                                  const Tensors& parameters,
                                                  const ParameterServerOptions& options,
                                                  const std::string& wrong) {
  Terms terms{{"servers", cat(options.servers)},
              {"staleness", cat(options.staleness)},
              {"weigh_by_staleness", cat(options.weigh_by_staleness)}};
  append_all(terms, terms_of("parameter", parameters));
  // Every rank must make every group, so the options are compared before.
  const auto wrong_options = wrong_parameter_options(options, group.size(), parameters.size());
  require_agreement(
      group, "parameter server", wrong_options.empty() ? wrong : wrong_options, terms);
  std::vector<ProcessGroup> pairs;
  for (const int server : indices_below(options.servers)) {
    for (int worker = options.servers; worker < group.size(); ++worker) {
      if (auto pair = group.new_group({server, worker}))
        pairs.push_back(std::move(*pair));
    }
  }
  return pairs;
}

void send_request(ProcessGroup& server, ParameterRequest request) {
  send_number(server, kServer, static_cast<int64_t>(request));
}

ParameterRequest receive_request(ProcessGroup& worker) {
  return static_cast<ParameterRequest>(receive_number(worker, kWorker));
}

// The length goes first, since the receiver does not know it. An empty list has no second message.
void send_numbers(ProcessGroup& pair, int to, const Int64s& numbers) {
  send_number(pair, to, std::ssize(numbers));
  if (!numbers.empty())
    pair.send(at::tensor(numbers, kLong), to);
}

Int64s receive_numbers(ProcessGroup& pair, int from) {
  const Tensor numbers = at::empty({receive_number(pair, from)}, kLong);
  if (numbers.numel() > 0)
    pair.recv(numbers, from);
  return {numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel()};
}

// Both sides make the same lots from the same tensors, so no lengths need be sent.
void send_tensors(ProcessGroup& pair, int to, const Tensors& tensors) {
  for (const Tensors& lot : lots_of(tensors))
    pair.send(flat_of(lot).cpu(), to);
}

// The tensors are written in place, lot by lot as the sender made them.
void receive_tensors(ProcessGroup& pair, int from, const Tensors& tensors) {
  for (const Tensors& lot : lots_of(tensors)) {
    const Tensor flat =
        at::empty({sum_of<int64_t>(lot, &Tensor::numel)}, lot[0].options().device(kCPU));
    pair.recv(flat, from);
    copy_from_flat(flat, lot);
  }
}

}  // namespace muster
