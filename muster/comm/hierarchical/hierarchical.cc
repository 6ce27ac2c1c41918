#include "muster/comm/hierarchical/hierarchical.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/late_ranks.h"
#include "muster/base/strings.h"
#include "muster/comm/call/bounded_wait.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/hierarchical/over_gloo.h"
#include "muster/comm/host/operation.h"
#include "muster/comm/host/ordered_executor.h"
#include "muster/comm/shm/backend.h"

namespace muster {

namespace {

using std::chrono::milliseconds;

// Elements that are summed inside the host while those before them are on the network.
constexpr int64_t kPieceBytes = 4 << 20;
// Less than this for each goes through one rank of the host alone: another connection would cost
// more.
constexpr int64_t kShareBytes = 64 << 10;

// Where one rank stands among the hosts.
struct Place {
  std::vector<std::vector<int>> ranks_of_hosts = {};  // hosts by their first rank
  size_t host = 0;
  int local_rank = 0;
  int num_ranks = 0;
  int columns = 0;    // local ranks that every host has: rank i of each talks to the others' rank i
  bool even = false;  // every host has as many ranks as any other

  const std::vector<int>& neighbours() const { return ranks_of_hosts[host]; }
};

Place place_of(int rank, const std::vector<std::string>& hosts) {
  Place place{.num_ranks = static_cast<int>(std::ssize(hosts))};
  std::vector<std::string> names;
  for (int other = 0; other < std::ssize(hosts); ++other) {
    const auto found = std::find(names.begin(), names.end(), hosts[static_cast<size_t>(other)]);
    const auto host = static_cast<size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(hosts[static_cast<size_t>(other)]);
      place.ranks_of_hosts.emplace_back();
    }
    auto& ranks = place.ranks_of_hosts[host];
    if (other == rank) {
      place.host = host;
      place.local_rank = static_cast<int>(ranks.size());
    }
    ranks.push_back(other);
  }
  const auto smallest = std::min_element(
      place.ranks_of_hosts.begin(), place.ranks_of_hosts.end(), [](const auto& a, const auto& b) {
        return a.size() < b.size();
      });
  place.columns = static_cast<int>(smallest->size());
  place.even = place.columns * std::ssize(place.ranks_of_hosts) == place.num_ranks;
  return place;
}

constexpr milliseconds kNetworkLook{100};    // while the network is waited for
constexpr std::chrono::seconds kToLetGo{5};  // of a network
// Before the failure is told: a Gloo that Python has made needs the interpreter to go, which ends
// soon after.
constexpr std::chrono::seconds kToLetGoOfFailed{1};

// Gloo's destructor waits for what is under way, for a host that has lost its power until the
// deadline. So it runs in a thread of its own, which is left behind where that takes long.
void let_go(c10::intrusive_ptr<c10d::Backend> network, milliseconds patience) {
  if (!network)
    return;
  auto gone = std::make_shared<std::promise<void>>();
  auto when_gone = gone->get_future();
  {
    const BlockedSignals blocked;  // in the thread, for good
    std::thread([network = std::move(network), gone]() mutable {
      network.reset();
      gone->set_value();
    }).detach();
  }
  if (when_gone.wait_for(patience) == std::future_status::ready || patience.count() == 0)
    return;
  warn(
      "process group: a connection to another host does not close; it stays open until the process "
      "ends");
}

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store,
                                        const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

RankNames names_on_host(const RankNames& names, const Place& place) {
  RankNames part = names.part(place.neighbours());
  part.of_one_host = true;
  return part;
}

class HierarchicalBackend : public OverGloo {
 public:
  HierarchicalBackend(const c10::intrusive_ptr<c10d::Store>& store,
                      int rank,
                      Place place,
                      std::chrono::milliseconds timeout,
                      const NetworkBackend& network,
                      const RankNames& names)
      : OverGloo(network(part_of(store, "all"), rank, place.num_ranks)),
        place_(std::move(place)),
        timeout_(countable(timeout)),
        names_(names_on_host(names, place_)),
        inside_(make_shm(part_of(store, cat("host/", place_.host)),
                         place_.local_rank,
                         static_cast<int>(std::ssize(place_.neighbours())),
                         timeout,
                         names_)) {
    if (place_.local_rank < place_.columns) {
      between_ = network(part_of(store, cat("column/", place_.local_rank)),
                         static_cast<int>(place_.host),
                         static_cast<int>(std::ssize(place_.ranks_of_hosts)));
    }
  }

  ~HierarchicalBackend() override {
    leave();
    let_go(std::move(backend_), kToLetGo);
  }

  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return inside_->supportsTensorAlloc(device);
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inside_->allocateTensor(size, options);
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    OverGloo::setTimeout(timeout);
    timeout_ = countable(timeout);
  }
  void abort() override {
    if (fork().in_child())
      return;
    given_up_ = true;
    inside_->abort();
  }
  void shutdown() override {
    if (fork().in_child())
      return;
    leave();
    ForwardingBackend::shutdown();
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (!goes_through_memory(tensors, options))
      return OverGloo::allreduce(tensors, options);
    fork().check("all_reduce");
    HostCall call("all_reduce", c10d::OpType::ALLREDUCE);
    call.out(tensors[0], true);
    return start(std::move(call),
                 options.timeout,
                 [this, op = options.reduceOp](const HostCall& call, const Deadline& deadline) {
                   all_reduce(numbers_of(written(call)), op, deadline);
                 });
  }

  // Behind what is under way, as Gloo's own: a rank that leaves after it has ended all that came
  // before.
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    fork().check("barrier");
    return start(HostCall("barrier", c10d::OpType::BARRIER),
                 options.timeout,
                 [this](const HostCall&, const Deadline& deadline) {
                   c10d::BarrierOptions of_all;
                   of_all.timeout = left(deadline);
                   wait_for_network(*backend_->barrier(of_all), deadline);
                 });
  }

  // Of even hosts: each value crosses the network once, to one rank of each other host, which gives
  // it to its neighbours.
  WorkPtr _allgather_base(at::Tensor& output,
                          at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    if (!place_.even || !are_parts(output, input))
      return OverGloo::_allgather_base(output, input, options);
    fork().check("all_gather");
    HostCall call("all_gather", c10d::OpType::_ALLGATHER_BASE);
    call.in(input);
    call.out(output);
    return start(
        std::move(call), options.timeout, [this](const HostCall& call, const Deadline& deadline) {
          all_gather(call, deadline);
        });
  }

  // Summed inside of each host; then, of even hosts, each host's sums cross the network once, to
  // the rank that they are for. Gloo's own is an all_reduce.
  WorkPtr _reduce_scatter_base(at::Tensor& output,
                               at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    if (!are_parts(input, output) || !is_reduced_by_gloo(input, options.reduceOp))
      return OverGloo::_reduce_scatter_base(output, input, options);
    fork().check("reduce_scatter");
    HostCall call("reduce_scatter", c10d::OpType::_REDUCE_SCATTER_BASE);
    call.in(input);
    call.out(output);
    return start(std::move(call),
                 options.timeout,
                 [this, op = options.reduceOp](const HostCall& call, const Deadline& deadline) {
                   reduce_scatter(call, op, deadline);
                 });
  }

 private:
  using Collective = std::function<void(const HostCall&, const Deadline&)>;

  static bool goes_through_memory(const Tensors& tensors, const c10d::AllreduceOptions& options) {
    return tensors.size() == 1 && !tensors[0].is_sparse() && tensors[0].numel() > 0 &&
           is_reduced_by_gloo(tensors[0], options.reduceOp);
  }

  // `whole` has a part for every rank. What is wrong with others Gloo tells.
  bool are_parts(const at::Tensor& whole, const at::Tensor& part) const {
    return whole.layout() == at::kStrided && part.layout() == at::kStrided && part.numel() > 0 &&
           whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * getSize();
  }

  // All else it refuses, or does in its own way.
  static bool is_reduced_by_gloo(const at::Tensor& tensor, const c10d::ReduceOp& op) {
    const bool mean = op == c10d::ReduceOp::AVG;
    switch (tensor.scalar_type()) {
      case at::kFloat:
      case at::kDouble:
      case at::kHalf:
      case at::kBFloat16:
        return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::MIN ||
               op == c10d::ReduceOp::MAX || op == c10d::ReduceOp::PRODUCT || mean;
      case at::kComplexFloat:
      case at::kComplexDouble:
        return op == c10d::ReduceOp::SUM || mean;
      case at::kInt:
      case at::kLong:
      case at::kByte:
      case at::kChar:
        return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::MIN ||
               op == c10d::ReduceOp::MAX || op == c10d::ReduceOp::PRODUCT;
      default:
        return false;
    }
  }

  WorkPtr start(HostCall call, milliseconds asked, Collective collective) {
    call.show_event(getBackendName());
    call.record = backend_record(
        *this, " c10d", call.name, static_cast<int64_t>(sequence_), call.first_tensor());
    auto operation = std::make_shared<HostOperation>(std::move(call));
    auto work = c10::make_intrusive<HostWork>(getRank(), sequence_++, operation);
    const Deadline deadline(timeout_of(asked, timeout_));
    try {
      executor_.submit([this, operation, deadline, collective = std::move(collective)](
                           const std::exception_ptr& broken) {
        operation->end({.error = broken ? broken : failure_of(*operation, deadline, collective)});
      });
    } catch (...) {
      operation->end({.error = std::current_exception()});
      throw;
    }
    return work;
  }

  std::exception_ptr failure_of(const HostOperation& operation,
                                const Deadline& deadline,
                                const Collective& collective) {
    try {
      const at::NoGradGuard no_grad;
      collective(operation.call(), deadline);
      return nullptr;
    } catch (const std::exception& error) {
      const auto failure = told_of_this_host(operation.call().name, error);
      give_up();
      executor_.break_group(failure);
      return failure;
    }
  }

  static bool is_mean_of_halves(const at::Tensor& tensor, const c10d::ReduceOp& op) {
    return op == c10d::ReduceOp::AVG &&
           (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
  }

  // What is summed: of complex numbers both parts.
  static at::Tensor numbers_of(const at::Tensor& memory) {
    return (memory.is_complex() ? at::view_as_real(memory.detach()) : memory).view(-1);
  }

  // What an operation reads and writes, in this host's memory.
  static const at::Tensor& read(const HostCall& call) { return call.held[0]; }
  static const at::Tensor& written(const HostCall& call) {
    return call.copies.empty() ? call.outputs[0] : call.copies[0].from;
  }

  void all_gather(const HostCall& call, const Deadline& deadline) {
    at::Tensor input = bytes_of(read(call));
    at::Tensor column = at::empty({hosts() * input.numel()},
                                  input.options());  // from this rank's like, host by host
    c10d::AllgatherOptions options;
    options.timeout = left(deadline);
    wait_for_network(*between_->_allgather_base(column, input, options), deadline);
    const auto rows = rows_of_hosts(bytes_of(written(call)));
    for (int64_t host = 0; host < hosts(); ++host) {
      options.timeout = left(deadline);
      std::vector<Tensors> outputs{rows[static_cast<size_t>(host)]};
      Tensors inputs{column.narrow(0, host * input.numel(), input.numel())};
      inside_->allgather(outputs, inputs, options)->wait();
    }
  }

  void reduce_scatter(const HostCall& call, const c10d::ReduceOp& op, const Deadline& deadline) {
    if (!place_.even)
      return reduce_and_cut(call, op, deadline);
    const at::Tensor given = numbers_of(read(call));
    const at::Tensor input = is_mean_of_halves(given, op) ? given.to(at::kFloat) : given;
    const bool mean = op == c10d::ReduceOp::AVG;
    const at::Tensor sums =
        sums_of_this_host(input, mean ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op, deadline);
    at::Tensor theirs = at::empty_like(sums);  // for this rank, host by host
    at::Tensor sent = bytes_of(sums), received = bytes_of(theirs);
    std::vector<int64_t> equal_parts;
    c10d::AllToAllOptions options;
    options.timeout = left(deadline);
    wait_for_network(*between_->alltoall_base(received, sent, equal_parts, equal_parts, options),
                     deadline);
    at::Tensor sum = theirs[0];
    for (int64_t host = 1; host < hosts(); ++host)
      add(sum, theirs[host], op);
    if (mean)
      sum.div_(getSize());
    numbers_of(written(call)).copy_(sum);
  }

  void reduce_and_cut(const HostCall& call, const c10d::ReduceOp& op, const Deadline& deadline) {
    const at::Tensor whole = numbers_of(read(call)).clone();
    all_reduce(whole, op, deadline);
    numbers_of(written(call)).copy_(whole.view({getSize(), -1})[getRank()]);
  }

  // For this rank's like on each host, host by host.
  at::Tensor sums_of_this_host(const at::Tensor& input,
                               const c10d::ReduceOp& op,
                               const Deadline& deadline) {
    at::Tensor sums = at::empty({hosts(), input.numel() / getSize()}, input.options());
    const auto rows = rows_of_hosts(input);
    c10d::ReduceScatterOptions options;
    options.reduceOp = op;
    for (int64_t host = 0; host < hosts(); ++host) {
      options.timeout = left(deadline);
      std::vector<Tensors> inputs{rows[static_cast<size_t>(host)]};
      Tensors outputs{sums[host]};
      inside_->reduce_scatter(outputs, inputs, options)->wait();
    }
    return sums;
  }

  static void add(at::Tensor& sum, const at::Tensor& more, const c10d::ReduceOp& op) {
    if (op == c10d::ReduceOp::MIN) {
      at::minimum_out(sum, sum, more);
    } else if (op == c10d::ReduceOp::MAX) {
      at::maximum_out(sum, sum, more);
    } else if (op == c10d::ReduceOp::PRODUCT) {
      sum.mul_(more);
    } else {
      sum.add_(more);
    }
  }

  int64_t hosts() const { return std::ssize(place_.ranks_of_hosts); }
  static at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view(-1).view(at::kByte); }

  // The parts that belong to each host's ranks.
  std::vector<Tensors> rows_of_hosts(const at::Tensor& whole) const {
    const auto parts = whole.view({getSize(), -1}).unbind(0);
    std::vector<Tensors> found;
    for (const auto& ranks : place_.ranks_of_hosts) {
      Tensors& rows = found.emplace_back();
      for (const int rank : ranks)
        rows.push_back(parts[static_cast<size_t>(rank)]);
    }
    return found;
  }

  // The sum of halves, of which their mean is made, may be more than their type has.
  void all_reduce(const at::Tensor& flat, const c10d::ReduceOp& op, const Deadline& deadline) {
    if (!is_mean_of_halves(flat, op))
      return reduce_in_pieces(flat, op, deadline);
    const at::Tensor wide = flat.to(at::kFloat);
    reduce_in_pieces(wide, op, deadline);
    flat.copy_(wide);
  }

  // Pieces follow each other: one is on the network while the next is summed in memory.
  void reduce_in_pieces(const at::Tensor& flat,
                        const c10d::ReduceOp& op,
                        const Deadline& deadline) {
    const bool mean = op == c10d::ReduceOp::AVG;
    const auto bytes = static_cast<int64_t>(flat.nbytes());
    const int64_t shares = std::clamp<int64_t>(bytes / kShareBytes, 1, place_.columns);
    const auto pieces = flat.chunk(std::max<int64_t>(1, bytes / (kPieceBytes * shares)));
    std::vector<WorkPtr> on_network;
    c10d::AllreduceOptions options;
    options.reduceOp = mean ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
    for (const at::Tensor& piece : pieces) {
      options.timeout = left(deadline);
      options.asyncOp = false;
      Tensors tensors{piece};
      inside_->allreduce(tensors, options)->wait();
      const auto parts = piece.tensor_split(shares);
      if (place_.local_rank >= shares)
        continue;
      tensors = {parts[static_cast<size_t>(place_.local_rank)]};
      if (tensors[0].numel() > 0)
        on_network.push_back(between_->allreduce(tensors, options));
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i < on_network.size())
        wait_for_network(*on_network[i], deadline);
      const auto parts = pieces[i].tensor_split(shares);
      for (int64_t owner = 0; owner < shares; ++owner)
        give_to_neighbours(parts[static_cast<size_t>(owner)], owner, deadline);
    }
    if (mean)
      flat.div_(getSize());
  }

  void give_to_neighbours(const at::Tensor& part, int64_t owner, const Deadline& deadline) {
    if (part.numel() == 0)
      return;
    c10d::BroadcastOptions options;
    options.rootRank = owner;
    options.timeout = left(deadline);
    options.asyncOp = false;
    Tensors tensors{part};
    inside_->broadcast(tensors, options)->wait();
  }

  void wait_for_network(c10d::Work& work, const Deadline& deadline) {
    while (!wait_for(work, std::min(kNetworkLook, left(deadline)))) {
      if (given_up_)
        throw Error(ErrorCode::failed_precondition,
                    "this rank has given up the group, after a failure or abort()");
      if (deadline.passed())
        throw Error(ErrorCode::timeout,
                    "the ranks of other hosts have not come in time; see what they do");
    }
  }

  static milliseconds left(const Deadline& deadline) {
    return std::max(deadline.left(), milliseconds(1));
  }

  // Gloo's messages number the hosts.
  std::exception_ptr told_of_this_host(const char* collective, const std::exception& error) const {
    const auto whose = cat(collective,
                           " over hosts on ",
                           names_.whose(place_.local_rank),
                           "; this host has ranks ",
                           join(names_.ranks, ", "));
    try {
      if (const auto* known = dynamic_cast<const Error*>(&error)) {
        throw Error(known->code(), cat(whose, ": ", known->message()));
      }
      translate_failures(whose, [] { throw; });
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // So that neither this host's ranks nor the other hosts' wait for what will not come.
  void give_up() {
    inside_->abort();
    let_go(std::move(between_), kToLetGoOfFailed);
  }

  void leave() {
    if (left_.exchange(true))
      return;
    executor_.leave();
    let_go(std::move(between_), kToLetGo);
    inside_->shutdown();
  }

  const Place place_;
  std::chrono::milliseconds timeout_;
  const RankNames names_;                     // of this host's ranks
  c10::intrusive_ptr<c10d::Backend> inside_;  // this host's ranks
  // The ranks of other hosts with this one's local rank; the thread's, until it has ended.
  c10::intrusive_ptr<c10d::Backend> between_;
  std::atomic<bool> given_up_ = false;
  uint64_t sequence_ = 0;
  std::atomic<bool> left_ = false;
  OrderedExecutor executor_{[this] { abort(); }};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_hierarchical(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    const std::vector<std::string>& hosts,
                                                    std::chrono::milliseconds timeout,
                                                    const NetworkBackend& network,
                                                    RankNames names) {
  if (names.ranks.empty())
    names = RankNames::of_all(static_cast<int>(hosts.size()));
  return c10::make_intrusive<HierarchicalBackend>(
      store, rank, place_of(rank, hosts), timeout, network, names);
}

}  // namespace muster
