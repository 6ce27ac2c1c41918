#include "muster/parallel/averaging/parameter_link.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "muster/base/strings.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/averaging/average.h"

namespace muster {

namespace {

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
  if (static_cast<size_t>(options.servers) > parameters)
    return wrong("a parameter or more for each server",
                 cat(options.servers, " servers and ", parameters, " parameters"),
                 "use fewer servers");
  if (options.staleness < 0)
    return wrong("a staleness of 0 steps or more",
                 cat(options.staleness),
                 "0 is synchronous, kAnyStaleness never waits");
  return "";
}

}  // namespace

bool keeps_parameters(const ProcessGroup& group, const ParameterServerOptions& options) {
  return group.rank() < options.servers;
}

std::vector<std::vector<at::Tensor>> parameter_shards(const std::vector<at::Tensor>& parameters,
                                                      int servers) {
  std::vector<size_t> by_size(parameters.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return parameters[a].nbytes() > parameters[b].nbytes();
  });
  std::vector<size_t> bytes(static_cast<size_t>(servers), 0);
  std::vector<size_t> server_of(parameters.size());
  for (const size_t i : by_size) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += std::max<size_t>(parameters[i].nbytes(), 1);
    server_of[i] = static_cast<size_t>(least - bytes.begin());
  }
  std::vector<std::vector<at::Tensor>> shards(static_cast<size_t>(servers));
  for (size_t i = 0; i < parameters.size(); ++i)
    shards[server_of[i]].push_back(parameters[i]);
  return shards;
}

std::vector<ProcessGroup> connect_parameter_pairs(ProcessGroup& group,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const ParameterServerOptions& options,
                                                  const std::string& wrong) {
  std::vector<Term> terms{{.name = "servers", .value = cat(options.servers)},
                          {.name = "staleness", .value = cat(options.staleness)},
                          {.name = "weigh_by_staleness", .value = cat(options.weigh_by_staleness)}};
  for (Term& term : terms_of("parameter", parameters))
    terms.push_back(std::move(term));
  const std::string wrong_options =
      wrong_parameter_options(options, group.size(), parameters.size());
  require_agreement(
      group, "parameter server", wrong_options.empty() ? wrong : wrong_options, terms);
  std::vector<ProcessGroup> pairs;
  for (int server = 0; server < options.servers; ++server) {
    for (int worker = options.servers; worker < group.size(); ++worker) {
      if (auto pair = group.new_group({server, worker}))
        pairs.push_back(std::move(*pair));
    }
  }
  return pairs;
}

void send_number(ProcessGroup& pair, int to, int64_t number) {
  pair.send(at::full({1}, number, at::kLong), to);
}

int64_t receive_number(ProcessGroup& pair, int from) {
  const at::Tensor number = at::empty({1}, at::kLong);
  pair.recv(number, from);
  return number.item<int64_t>();
}

void send_numbers(ProcessGroup& pair, int to, const std::vector<int64_t>& numbers) {
  send_number(pair, to, static_cast<int64_t>(numbers.size()));
  if (!numbers.empty())
    pair.send(at::tensor(numbers, at::kLong), to);
}

std::vector<int64_t> receive_numbers(ProcessGroup& pair, int from) {
  const at::Tensor numbers = at::empty({receive_number(pair, from)}, at::kLong);
  if (numbers.numel() > 0)
    pair.recv(numbers, from);
  return {numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel()};
}

void send_tensors(ProcessGroup& pair, int to, const std::vector<at::Tensor>& tensors) {
  for (const std::vector<at::Tensor>& lot : lots_of(tensors))
    pair.send(flat_of(lot).cpu(), to);
}

void receive_tensors(ProcessGroup& pair, int from, const std::vector<at::Tensor>& tensors) {
  for (const std::vector<at::Tensor>& lot : lots_of(tensors)) {
    int64_t elements = 0;
    for (const at::Tensor& tensor : lot)
      elements += tensor.numel();
    const at::Tensor flat = at::empty({elements}, lot[0].options().device(at::kCPU));
    pair.recv(flat, from);
    copy_from_flat(flat, lot);
  }
}

}  // namespace muster
