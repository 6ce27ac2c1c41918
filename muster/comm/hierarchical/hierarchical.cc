// A rank is in two groups: inside_ has its host's ranks, and between_ has the ranks of all hosts
// that have the same local rank (a column). A collective goes through both, one after the other, in
// the executor's thread. Only that thread uses them while calls are under way.
#include "muster/comm/hierarchical/hierarchical.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/late_ranks.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/bounded_wait.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/hierarchical/over_gloo.h"
#include "muster/comm/host/operation.h"
#include "muster/comm/host/ordered_executor.h"
#include "muster/comm/host/plain_tensor.h"
#include "muster/comm/shm/backend.h"

namespace muster {

namespace {

using RedOp = c10d::ReduceOp::RedOpType;

// Ranks and hosts are few enough for an int.
template <class List>
int count_of(const List& list) {
  return static_cast<int>(std::ssize(list));
}

constexpr milliseconds kNetworkLook{100};    // between two looks while the network is waited for
constexpr std::chrono::seconds kToLetGo{5};  // for a network to close
// A network that has failed closes before the failure is told: a Gloo that Python has made needs
// the interpreter to go, which ends soon after.
constexpr std::chrono::seconds kToLetGoOfFailed{1};
// While a piece is on the network, the next one is summed inside the host.
constexpr int64_t kPieceBytes = 4 << 20;
// A rank's share is no smaller: else fewer ranks of the host have one, because another connection
// would cost more.
constexpr int64_t kShareBytes = 64 << 10;

// One rank's place among the hosts.
struct Place {
  std::vector<Ints> ranks_of_hosts{};  // hosts by their first rank
  int host = 0;
  int local_rank = 0;
  int num_ranks = 0;
  int columns = 0;    // local ranks that every host has: rank i of each talks to the others' rank i
  bool even = false;  // every host has as many ranks as any other

  const Ints& neighbours() const { return ranks_of_hosts[host]; }
};

// `hosts` has each rank's host. Hosts are numbered by their first rank, and a host's ranks by their
// own order.
Place place_of(int rank, const Strings& hosts) {
  Place place{.num_ranks = count_of(hosts)};
  Strings names;
  for (const int other : indices_below(place.num_ranks)) {
    const auto found = std::ranges::find(names, hosts[other]);
    const auto host = static_cast<int>(found - names.begin());
    if (found == names.end()) {
      names.push_back(hosts[other]);
      place.ranks_of_hosts.emplace_back();
    }
    auto& ranks = place.ranks_of_hosts[host];
    if (other == rank) {
      place.host = host;
      place.local_rank = count_of(ranks);
    }
    ranks.push_back(other);
  }
  place.columns = count_of(std::ranges::min(place.ranks_of_hosts, {}, std::ranges::size));
  place.even = place.columns * std::ssize(place.ranks_of_hosts) == place.num_ranks;
  return place;
}

// Gloo's destructor waits for what is under way, and where a host has lost its power until the
// deadline. So it runs in a thread of its own, which is left behind where that takes long.
void let_go(BackendPtr network, milliseconds patience) {
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

// Gloo reduces these types with these operations. It refuses others, or reduces them in its own
// way.
bool is_reduced_by_gloo(ScalarType type, RedOp op) {
  const bool mean = op == RedOp::AVG;
  const bool sum = op == RedOp::SUM;
  if (type == kComplexFloat || type == kComplexDouble)
    return sum || mean;
  if (!is_known_everywhere(type))
    return false;
  if (mean)
    return at::isFloatingType(type);
  return sum || op == RedOp::MIN || op == RedOp::MAX || op == RedOp::PRODUCT;
}

RankNames names_on_host(const RankNames& names, const Place& place) {
  RankNames part = names.part(place.neighbours());
  part.of_one_host = true;
  return part;
}

class HierarchicalBackend : public OverGloo {
 public:
  HierarchicalBackend(const StorePtr& store,
                      int rank,
                      Place place,
                      milliseconds timeout,
                      const NetworkBackend& network,
                      const RankNames& names)
      : OverGloo(network(store_part(store, "all"), rank, place.num_ranks), "muster", names),
        place_(std::move(place)),
        timeout_(countable(timeout)),
        names_(names_on_host(names, place_)),
        inside_(make_shm(store_part(store, cat("host/", place_.host)),
                         place_.local_rank,
                         count_of(place_.neighbours()),
                         timeout,
                         names_)) {
    if (place_.local_rank < place_.columns) {
      between_ = network(store_part(store, cat("column/", place_.local_rank)),
                         place_.host,
                         count_of(place_.ranks_of_hosts));
    }
  }

  ~HierarchicalBackend() override {
    leave();
    let_go(std::move(backend_), kToLetGo);
  }

  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return inside_->supportsTensorAlloc(device);
  }
  Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inside_->allocateTensor(size, options);
  }

  void setTimeout(milliseconds timeout) override {
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
    backend_->shutdown();
  }

  // Gloo alone reduces what does not go through memory.
  WorkPtr allreduce(Tensors& tensors, const AllreduceOptions& options) override {
    if (!goes_through_memory(tensors, options))
      return OverGloo::allreduce(tensors, options);
    fork().check("all_reduce");
    HostCall call("all_reduce", OpType::ALLREDUCE);
    call.out(tensors[0], true);
    return start(std::move(call),
                 options.timeout,
                 [this, op = options.reduceOp](const HostCall& call, const Deadline& deadline) {
                   all_reduce(numbers_of(written(call)), op, deadline);
                 });
  }

  // It comes behind what is under way, as Gloo's own: a rank that leaves after it has ended all
  // that came before.
  WorkPtr barrier(const BarrierOptions& options) override {
    fork().check("barrier");
    return start(HostCall("barrier", OpType::BARRIER),
                 options.timeout,
                 [this](const HostCall&, const Deadline& deadline) {
                   BarrierOptions of_all;
                   of_all.timeout = left(deadline);
                   wait_for_network(*backend_->barrier(of_all), deadline);
                 });
  }

  // Between even hosts each value crosses the network once, to one rank of each other host, which
  // gives it to its neighbours.
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const AllgatherOptions& options) override {
    if (!place_.even || !are_parts(output, input))
      return OverGloo::_allgather_base(output, input, options);
    fork().check("all_gather");
    HostCall call("all_gather", OpType::_ALLGATHER_BASE);
    call.in(input);
    call.out(output);
    return start(
        std::move(call), options.timeout, [this](const HostCall& call, const Deadline& deadline) {
          all_gather(call, deadline);
        });
  }

  // Inputs are summed inside of each host. Between even hosts, each host's sums then cross the
  // network once, to the rank that they are for. Gloo's own is an all_reduce.
  WorkPtr _reduce_scatter_base(Tensor& output,
                               Tensor& input,
                               const ReduceScatterOptions& options) override {
    if (!are_parts(input, output) || !is_reduced_by_gloo(input.scalar_type(), options.reduceOp))
      return OverGloo::_reduce_scatter_base(output, input, options);
    fork().check("reduce_scatter");
    HostCall call("reduce_scatter", OpType::_REDUCE_SCATTER_BASE);
    call.in(input);
    call.out(output);
    return start(std::move(call),
                 options.timeout,
                 [this, op = options.reduceOp](const HostCall& call, const Deadline& deadline) {
                   sum_and_scatter(call, op, deadline);
                 });
  }

 private:
  using Collective = std::function<void(const HostCall&, const Deadline&)>;

  static bool goes_through_memory(const Tensors& tensors, const AllreduceOptions& options) {
    if (tensors.size() != 1 || tensors[0].is_sparse() || tensors[0].numel() == 0)
      return false;
    return is_reduced_by_gloo(tensors[0].scalar_type(), options.reduceOp);
  }

  // Whether `whole` has a part for every rank. Gloo tells what is wrong with others.
  bool are_parts(const Tensor& whole, const Tensor& part) const {
    if (whole.layout() != kStrided || part.layout() != kStrided || part.numel() == 0)
      return false;
    return whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * getSize();
  }

  // Queues the collective. A failure breaks the group: the other ranks may have gone on.
  WorkPtr start(HostCall call, milliseconds asked, Collective collective) {
    call.show_event(getBackendName());
    call.record = backend_record(*this, " c10d", call.name, sequence_, call.first_tensor());
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
      const NoGradGuard no_grad;
      collective(operation.call(), deadline);
      return nullptr;
    } catch (const std::exception& error) {
      const auto failure = told_of_this_host(operation.call().name, error);
      give_up();
      executor_.break_group(failure);
      return failure;
    }
  }

  static bool is_mean_of_halves(const Tensor& tensor, const c10d::ReduceOp& op) {
    return op == c10d::ReduceOp::AVG && at::isReducedFloatingType(tensor.scalar_type());
  }

  // The real numbers that are summed: both parts of complex ones.
  static Tensor numbers_of(const Tensor& memory) {
    return (memory.is_complex() ? at::view_as_real(memory.detach()) : memory).view(-1);
  }

  // The memory of this host that a call reads and writes.
  static const Tensor& read(const HostCall& call) { return call.held[0]; }
  static const Tensor& written(const HostCall& call) {
    return call.copies.empty() ? call.outputs[0] : call.copies[0].from;
  }

  // The column brings each host's input of this local rank; then the ranks of this host gather, for
  // each host, what their columns have brought.
  void all_gather(const HostCall& call, const Deadline& deadline) {
    Tensor input = bytes_of(read(call));
    // The inputs of this rank's column, host by host.
    Tensor column = at::empty({hosts() * input.numel()}, input.options());
    AllgatherOptions options;
    options.timeout = left(deadline);
    wait_for_network(*between_->_allgather_base(column, input, options), deadline);
    const auto rows = rows_of_hosts(bytes_of(written(call)));
    for (const int64_t host : indices_below(hosts())) {
      options.timeout = left(deadline);
      TensorLists outputs{rows[host]};
      Tensors inputs{column.narrow(0, host * input.numel(), input.numel())};
      inside_->allgather(outputs, inputs, options)->wait();
    }
  }

  static c10d::ReduceOp without_mean(const c10d::ReduceOp& op) {
    return op == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
  }

  void sum_and_scatter(const HostCall& call, const c10d::ReduceOp& op, const Deadline& deadline) {
    if (!place_.even)
      return reduce_and_cut(call, op, deadline);
    const Tensor given = numbers_of(read(call));
    const Tensor input = is_mean_of_halves(given, op) ? given.to(kFloat) : given;
    const Tensor sums = sums_of_this_host(input, without_mean(op), deadline);
    const Tensor for_this_rank = at::empty_like(sums);  // host by host
    Tensor sent = bytes_of(sums), received = bytes_of(for_this_rank);
    Int64s equal_parts;
    AllToAllOptions options;
    options.timeout = left(deadline);
    wait_for_network(*between_->alltoall_base(received, sent, equal_parts, equal_parts, options),
                     deadline);
    Tensor sum = for_this_rank[0];
    for (int64_t host = 1; host < hosts(); ++host)
      add(sum, for_this_rank[host], op);
    if (op == c10d::ReduceOp::AVG)
      sum.div_(getSize());
    numbers_of(written(call)).copy_(sum);
  }

  // Uneven hosts have no columns of all ranks: everything is summed everywhere.
  void reduce_and_cut(const HostCall& call, const c10d::ReduceOp& op, const Deadline& deadline) {
    const Tensor whole = numbers_of(read(call)).clone();
    all_reduce(whole, op, deadline);
    numbers_of(written(call)).copy_(whole.view({getSize(), -1})[getRank()]);
  }

  // Sums what this host's ranks have for this rank's column, host by host.
  Tensor sums_of_this_host(const Tensor& input,
                           const c10d::ReduceOp& op,
                           const Deadline& deadline) {
    Tensor sums = at::empty({hosts(), input.numel() / getSize()}, input.options());
    const auto rows = rows_of_hosts(input);
    ReduceScatterOptions options;
    options.reduceOp = op;
    for (const int64_t host : indices_below(hosts())) {
      options.timeout = left(deadline);
      TensorLists inputs{rows[host]};
      Tensors outputs{sums[host]};
      inside_->reduce_scatter(outputs, inputs, options)->wait();
    }
    return sums;
  }

  static void add(Tensor& sum, const Tensor& more, const c10d::ReduceOp& op) {
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
  static Tensor bytes_of(const Tensor& tensor) { return tensor.view(-1).view(kByte); }

  // The parts that belong to each host's ranks.
  TensorLists rows_of_hosts(const Tensor& whole) const {
    const auto parts = whole.view({getSize(), -1}).unbind(0);
    return mapped(place_.ranks_of_hosts, [&](const Ints& ranks) {
      return mapped(ranks, [&](int rank) { return parts[rank]; });
    });
  }

  // A mean of halves is made from floats: their sum may be more than their type has.
  void all_reduce(const Tensor& flat, const c10d::ReduceOp& op, const Deadline& deadline) {
    if (!is_mean_of_halves(flat, op))
      return reduce_in_pieces(flat, op, deadline);
    const Tensor wide = flat.to(kFloat);
    reduce_in_pieces(wide, op, deadline);
    flat.copy_(wide);
  }

  // Pieces follow each other: one is on the network while the next is summed in memory. Of a piece,
  // the first ranks of the host have a share each, which they sum with the other hosts' and then
  // give to their neighbours.
  void reduce_in_pieces(const Tensor& flat, const c10d::ReduceOp& op, const Deadline& deadline) {
    const int64_t bytes = flat.numel() * flat.element_size();
    const int64_t shares = std::clamp<int64_t>(bytes / kShareBytes, 1, place_.columns);
    const auto pieces = flat.chunk(std::max<int64_t>(1, bytes / (kPieceBytes * shares)));
    std::vector<WorkPtr> on_network;
    AllreduceOptions options;
    options.reduceOp = without_mean(op);
    options.asyncOp = false;
    for (const Tensor& piece : pieces) {
      options.timeout = left(deadline);
      Tensors tensors{piece};
      inside_->allreduce(tensors, options)->wait();
      const auto parts = piece.tensor_split(shares);
      if (place_.local_rank >= shares)
        continue;
      tensors = {parts[place_.local_rank]};
      if (tensors[0].numel() > 0)
        on_network.push_back(between_->allreduce(tensors, options));
    }
    for (const size_t i : indices_of(pieces)) {
      if (i < on_network.size())  // only the last piece may have nothing for this rank
        wait_for_network(*on_network[i], deadline);
      const auto parts = pieces[i].tensor_split(shares);
      for (const int64_t owner : indices_below(shares))
        give_to_neighbours(parts[owner], owner, deadline);
    }
    if (op == c10d::ReduceOp::AVG)
      flat.div_(getSize());
  }

  void give_to_neighbours(const Tensor& part, int64_t owner, const Deadline& deadline) {
    if (part.numel() == 0)
      return;
    BroadcastOptions options;
    options.rootRank = owner;
    options.timeout = left(deadline);
    options.asyncOp = false;
    Tensors tensors{part};
    inside_->broadcast(tensors, options)->wait();
  }

  // Looks now and then whether abort() was called.
  void wait_for_network(c10d::Work& work, const Deadline& deadline) {
    while (!wait_for(work, std::min(kNetworkLook, left(deadline)))) {
      if (given_up_)
        throw failed_precondition("this rank has given up the group, after a failure or abort()");
      if (deadline.passed())
        throw Error(ErrorCode::timeout,
                    "the ranks of other hosts have not come in time; see what they do");
    }
  }

  // The time left for the next step, which is never "none".
  static milliseconds left(const Deadline& deadline) {
    return std::max(deadline.left(), milliseconds(1));
  }

  // Gloo's messages number the hosts, so that the error names this host's ranks first.
  std::exception_ptr told_of_this_host(const char* collective, const std::exception& error) const {
    const auto whose = cat(collective,
                           " over hosts on ",
                           names_.whose(place_.local_rank),
                           "; this host has ranks ",
                           join(names_.ranks, ", "));
    try {
      if (const auto* known = dynamic_cast<const Error*>(&error)) {
        throw Error(known->code(), whose, ": ", known->message());
      }
      translate_failures(whose, [] { throw; });
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // After a failure neither this host's ranks nor the other hosts' wait for what will not come.
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
  milliseconds timeout_;
  const RankNames names_;  // of this host's ranks
  BackendPtr inside_;      // this host's ranks
  BackendPtr between_;     // this rank's column; null where it has none
  std::atomic<bool> given_up_ = false;
  int64_t sequence_ = 0;
  std::atomic<bool> left_ = false;
  OrderedExecutor executor_{[this] { abort(); }};
};

}  // namespace

BackendPtr make_hierarchical(const StorePtr& store,
                             int rank,
                             const Strings& hosts,
                             milliseconds timeout,
                             const NetworkBackend& network,
                             RankNames names) {
  if (names.ranks.empty())
    names = RankNames::of_all(count_of(hosts));
  return c10::make_intrusive<HierarchicalBackend>(
      store, rank, place_of(rank, hosts), timeout, network, names);
}

}  // namespace muster
