#include "tests/comm/conformance_types.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <map>

#include "muster/comm/torch_compat.h"
#include "tests/comm/conformance_support.h"

namespace muster::testing {

namespace {

using Tensors = std::vector<at::Tensor>;

const std::vector<at::ScalarType> kAllTypes = {at::kFloat,
                                               at::kDouble,
                                               at::kHalf,
                                               at::kBFloat16,
                                               at::kByte,
                                               at::kChar,
                                               at::kShort,
                                               at::kInt,
                                               at::kLong,
                                               at::kBool,
                                               at::kUInt16,
                                               at::kUInt32,
                                               at::kUInt64,
                                               at::kComplexHalf,
                                               at::kComplexFloat,
                                               at::kComplexDouble,
                                               at::kFloat8_e5m2,
                                               at::kFloat8_e4m3fn,
                                               at::kFloat8_e5m2fnuz,
                                               at::kFloat8_e4m3fnuz,
                                               at::kFloat8_e8m0fnu};

// Where a matrix of 4 × 6 lies: its values in order, or by columns, or between others.
enum class Layout { in_order, by_columns, between_others };
constexpr Layout kLayouts[] = {Layout::in_order, Layout::by_columns, Layout::between_others};

at::Tensor room(Layout layout, int64_t rows, at::TensorOptions options) {
  if (layout == Layout::by_columns)
    return at::zeros({6, rows}, options).t();
  if (layout == Layout::between_others)
    return at::zeros({rows, 12}, options).slice(1, 0, 12, 2);
  return at::zeros({rows, 6}, options);
}

// Any bits, another for every rank, row and column.
at::Tensor bits(int rank, int64_t rows, at::ScalarType type) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor all = torch::arange(rows * 6 * size) * 7 + 31 * rank + 3;
  return all.remainder(type == at::kBool ? 2 : 251).to(at::kByte).view({rows, 6 * size}).view(type);
}

at::Tensor placed(const at::Tensor& values, Layout layout, c10::Device device) {
  at::Tensor there = room(layout, values.size(0), values.options().device(device));
  there.copy_(values);
  return there;
}

void expect_bits(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.cpu().resolve_conj().resolve_neg().contiguous().view({-1}).view(at::kByte);
  };
  expect(bytes(got).equal(bytes(expected)), what);
}

// A table's row: a type in a layout, in one group.
struct Row {
  ProcessGroup& group;
  at::ScalarType type;
  Layout layout;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  at::Tensor mine(int64_t rows = 4) const {
    return placed(bits(rank(), rows, type), layout, group.device());
  }
  at::Tensor empty(int64_t rows = 4) const {
    return room(layout, rows, at::TensorOptions(type).device(group.device()));
  }
  at::Tensor of_all(int64_t rows = 4) const {
    Tensors all;
    for (int other = 0; other < size(); ++other)
      all.push_back(bits(other, rows, type).view(at::kByte));
    return torch::cat(all).view(type);
  }
  // What each rank sends to this one, where all send their rows of `bits` in order.
  at::Tensor sent_here() const {
    Tensors parts;
    for (int other = 0; other < size(); ++other)
      parts.push_back(
          bits(other, 2 * size(), type).slice(0, 2 * rank(), 2 * rank() + 2).view(at::kByte));
    return torch::cat(parts).view(type);
  }
  void expect(const at::Tensor& got, const at::Tensor& expected, const std::string& call) const {
    expect_bits(got,
                expected,
                cat(call, " of ", c10::toString(type), ", layout ", static_cast<int>(layout)));
  }
};

void move_by_group(const Row& row) {
  ProcessGroup& group = row.group;
  const int root = group.size() - 1;
  at::Tensor tensor = row.mine();
  group.broadcast(tensor, root);
  row.expect(tensor, bits(root, 4, row.type), "broadcast");
  at::Tensor all = row.empty(int64_t{4} * row.size());
  group.all_gather(all, row.mine());
  row.expect(all, row.of_all(), "all_gather");
  at::Tensor gathered = row.rank() == root ? row.empty(int64_t{4} * row.size()) : at::Tensor();
  group.gather(gathered, row.mine(), root);
  if (row.rank() == root)
    row.expect(gathered, row.of_all(), "gather");
  at::Tensor part = row.empty();
  group.scatter(part, gathered, root);
  row.expect(part, bits(row.rank(), 4, row.type), "scatter");
  at::Tensor from_all = row.empty(int64_t{2} * row.size());
  group.all_to_all(from_all, row.mine(int64_t{2} * row.size()));
  row.expect(from_all, row.sent_here(), "all_to_all");
  const auto expect_varying = [&](const Tensors& parts, const std::string& call) {
    for (int other = 0; other < row.size(); ++other)
      row.expect(parts[static_cast<size_t>(other)], bits(other, other, row.type), call);
  };
  const Tensors varying = group.gather_varying(row.mine(row.rank()), root);
  if (row.rank() == root)
    expect_varying(varying, "gather_varying");
  expect_varying(group.all_gather_varying(row.mine(row.rank())), "all_gather_varying");
  if (row.size() == 1)
    return;
  const int next = (row.rank() + 1) % row.size(),
            before = (row.rank() + row.size() - 1) % row.size();
  at::Tensor received = row.empty();
  auto sending = group.send_async(row.mine(), next, 7);
  group.recv(received, before, 7);
  sending.wait();
  row.expect(received, bits(before, 4, row.type), "send and recv");
}

Tensors parts_for_all(const Row& row) {
  Tensors parts;
  for (int other = 0; other < row.size(); ++other)
    parts.push_back(row.empty());
  return parts;
}

void move_by_c10d(const Row& row) {
  c10d::ProcessGroup& group = *row.group.c10d();
  const int root = row.size() - 1;
  Tensors one{row.mine()};
  group.broadcast(one, {.rootRank = root})->wait();
  row.expect(one[0], bits(root, 4, row.type), "c10d's broadcast");
  Tensors mine{row.mine()};
  std::vector<Tensors> lists{parts_for_all(row)};
  group.allgather(lists, mine)->wait();
  for (int other = 0; other < row.size(); ++other)
    row.expect(lists[0][static_cast<size_t>(other)], bits(other, 4, row.type), "c10d's allgather");
  const Tensors gathered = lists[0];
  if (row.rank() != root)
    lists.clear();
  group.gather(lists, mine, {.rootRank = root})->wait();
  if (row.rank() == root) {
    for (int other = 0; other < row.size(); ++other)
      row.expect(lists[0][static_cast<size_t>(other)], bits(other, 4, row.type), "c10d's gather");
  }
  Tensors part{row.empty()};
  group.scatter(part, lists, {.rootRank = root})->wait();
  row.expect(part[0], bits(row.rank(), 4, row.type), "c10d's scatter");
  Tensors from = parts_for_all(row), to;
  for (int other = 0; other < row.size(); ++other)
    to.push_back(row.mine());
  group.alltoall(from, to)->wait();
  for (int other = 0; other < row.size(); ++other)
    row.expect(from[static_cast<size_t>(other)], bits(other, 4, row.type), "c10d's alltoall");
  at::Tensor input = row.mine(int64_t{2} * row.size()), output = row.empty(int64_t{2} * row.size());
  std::vector<int64_t> equal_parts;
  all_to_all_single(group, output, input, equal_parts, equal_parts, c10d::AllToAllOptions())
      ->wait();
  row.expect(output, row.sent_here(), "c10d's alltoall_base");
  at::Tensor all = row.empty(int64_t{4} * row.size());
  all_gather_single(group, all, mine[0], c10d::AllgatherOptions())->wait();
  row.expect(all, row.of_all(), "c10d's _allgather_base");
  if (row.size() == 1)
    return;
  const int next = (row.rank() + 1) % row.size(),
            before = (row.rank() + row.size() - 1) % row.size();
  Tensors received{row.empty()};
  auto sending = group.send(mine, next, 9);
  group.recv(received, before, 9)->wait();
  sending->wait();
  row.expect(received[0], bits(before, 4, row.type), "c10d's send and recv");
}

// NCCL's backend is PyTorch's own, and so are its types.
bool is_pytorchs(const ProcessGroup& group) {
  return group.backend() == "nccl";
}

// Small whole numbers, of which every type has the sums and products; of bool, both.
at::Tensor numbers(int rank, at::ScalarType type, int64_t rows) {
  const at::Tensor all = torch::arange(rows * 6).reshape({rows, 6});
  if (type == at::kBool)
    return (all + rank).remainder(2).to(type);
  const at::Tensor small = all.remainder(3) + rank % 3 + 1;
  if (!c10::isComplexType(type))
    return small.to(type);
  return torch::complex(small.to(at::kDouble), (small * 2 - 3).to(at::kDouble)).to(type);
}

using Combine = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
struct Operation {
  ReduceOp op;
  const char* name;
  Combine combine;
};

at::Tensor times(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kBool ? a & b : a * b;
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {ReduceOp::sum, "sum", [](const auto& a, const auto& b) { return a + b; }},
      {ReduceOp::avg, "avg", [](const auto& a, const auto& b) { return a + b; }},
      {ReduceOp::product, "product", times},
      {ReduceOp::min, "min", [](const auto& a, const auto& b) { return at::minimum(a, b); }},
      {ReduceOp::max, "max", [](const auto& a, const auto& b) { return at::maximum(a, b); }},
      {ReduceOp::band, "band", [](const auto& a, const auto& b) { return a & b; }},
      {ReduceOp::bor, "bor", [](const auto& a, const auto& b) { return a | b; }},
      {ReduceOp::bxor, "bxor", [](const auto& a, const auto& b) { return a ^ b; }}};
  return all;
}

bool has(at::ScalarType type, ReduceOp op) {
  const bool whole = type == at::kBool || type == at::kByte || type == at::kChar ||
                     type == at::kShort || type == at::kInt || type == at::kLong;
  const bool real =
      type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
  const bool complex = type == at::kComplexFloat || type == at::kComplexDouble;
  switch (op) {
    case ReduceOp::sum:
      return whole || real || complex;
    case ReduceOp::avg:
      return real || complex;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::max:
      return whole || real;
    default:
      return whole;
  }
}

at::Tensor expected_of(const Row& row, const Operation& operation, int64_t rows) {
  at::Tensor result = numbers(0, row.type, rows);
  for (int other = 1; other < row.size(); ++other)
    result = operation.combine(result, numbers(other, row.type, rows)).to(row.type);
  return operation.op == ReduceOp::avg ? result / row.size() : result;
}

// Means are compared within rounding, all else exactly.
void expect_numbers(const Row& row,
                    const at::Tensor& got,
                    const at::Tensor& expected,
                    const std::string& what) {
  const bool right = what.starts_with("avg") ? at::allclose(got.cpu(), expected, 1e-2, 1e-6)
                                             : got.cpu().equal(expected);
  expect(right,
         cat(what, " of ", c10::toString(row.type), ", layout ", static_cast<int>(row.layout)));
}

void reduce(const Row& row, const Operation& operation) {
  const c10::Device device = row.group.device();
  const int64_t rows = row.size();
  const auto given = [&] {
    return placed(numbers(row.rank(), row.type, rows), row.layout, device);
  };
  const at::Tensor expected = expected_of(row, operation, rows);
  at::Tensor everywhere = given();
  row.group.all_reduce(everywhere, operation.op);
  expect_numbers(row, everywhere, expected, cat(operation.name, ": all_reduce"));
  at::Tensor at_root = given();
  row.group.reduce(at_root, row.size() - 1, operation.op);
  if (row.rank() == row.size() - 1)
    expect_numbers(row, at_root, expected, cat(operation.name, ": reduce"));
  at::Tensor part = row.empty(1);
  row.group.reduce_scatter(part, given(), operation.op);
  expect_numbers(row,
                 part,
                 expected.slice(0, row.rank(), row.rank() + 1),
                 cat(operation.name, ": reduce_scatter"));
}

void expect_refused(const Row& row, const Operation& operation) {
  const std::string says = cat("got ", operation.name);
  expect_error(
      ErrorCode::invalid_argument, says, [&] { row.group.all_reduce(row.empty(), operation.op); });
  expect_error(
      ErrorCode::invalid_argument, says, [&] { row.group.reduce(row.empty(), 0, operation.op); });
  expect_error(ErrorCode::invalid_argument, says, [&] {
    row.group.reduce_scatter(row.empty(1), row.empty(row.size()), operation.op);
  });
}

}  // namespace

void every_type_is_moved(ProcessGroup& group) {
  for (const at::ScalarType type : kAllTypes)
    for (const Layout layout : kLayouts)
      move_by_group({group, type, layout});
}

void every_type_is_moved_by_c10d(ProcessGroup& group) {
  if (is_pytorchs(group))
    return;
  for (const at::ScalarType type : kAllTypes)
    for (const Layout layout : kLayouts)
      move_by_c10d({group, type, layout});
}

void every_type_is_reduced_or_refused(ProcessGroup& group) {
  if (is_pytorchs(group))
    return;
  for (const at::ScalarType type : kAllTypes) {
    for (const Operation& operation : operations()) {
      const bool also_here =
          c10::isComplexType(type) && operation.op == ReduceOp::product;  // in memory, MPI
      if (also_here)
        continue;
      if (!has(type, operation.op)) {
        expect_refused({group, type, Layout::in_order}, operation);
        continue;
      }
      for (const Layout layout : kLayouts)
        reduce({group, type, layout}, operation);
    }
  }
}

namespace {

struct Lazy {
  const char* name;
  std::function<at::Tensor(const at::Tensor& complex)> view;
};

const std::vector<Lazy>& lazies() {
  static const std::vector<Lazy> all = {
      {"conjugated", [](const at::Tensor& complex) { return complex.conj(); }},
      {"negated",
       [](const at::Tensor& complex) { return at::imag(complex.conj()).slice(1, 0, 6); }},
      {"conjugated and transposed",
       [](const at::Tensor& complex) { return complex.t().conj().t(); }}};
  return all;
}

at::Tensor lazy_of(const Lazy& lazy, int rank, int64_t rows, c10::Device device) {
  return lazy.view(numbers(rank, at::kComplexFloat, rows).to(device));
}
at::Tensor plain_of(const Lazy& lazy, int rank, int64_t rows) {
  return lazy_of(lazy, rank, rows, at::kCPU).resolve_conj().resolve_neg().contiguous();
}

// What is written is as lazy as what is read, or plain: that is each rank's own affair.
struct LazyCase {
  ProcessGroup& group;
  const Lazy& lazy;
  bool lazy_outputs;

  int size() const { return group.size(); }
  int rank() const { return group.rank(); }
  int root() const { return size() - 1; }
  at::Tensor input(int64_t rows) const { return lazy_of(lazy, rank(), rows, group.device()); }
  at::Tensor output(int64_t rows) const {
    const at::Tensor tensor = input(rows);
    return lazy_outputs || rank() == root() ? tensor
                                            : tensor.resolve_conj().resolve_neg().contiguous();
  }
  Tensors of_all(int64_t rows) const {
    Tensors all;
    for (int other = 0; other < size(); ++other)
      all.push_back(plain_of(lazy, other, rows));
    return all;
  }
  void check(const at::Tensor& got, const at::Tensor& expected, const char* call) const {
    expect(got.cpu().resolve_conj().resolve_neg().equal(expected),
           cat(call, " of a tensor that is ", lazy.name));
  }
};

void reduce_lazy(const LazyCase& lazy) {
  const at::Tensor sum = torch::stack(lazy.of_all(4)).sum(0);
  at::Tensor tensor = lazy.output(4);
  lazy.group.all_reduce(tensor);
  lazy.check(tensor, sum, "all_reduce");
  tensor = lazy.output(4);
  lazy.group.reduce(tensor, lazy.root());
  if (lazy.rank() == lazy.root())
    lazy.check(tensor, sum, "reduce");
  const int64_t rows = int64_t{4} * lazy.size();
  tensor = lazy.output(4);
  lazy.group.reduce_scatter(tensor, lazy.input(rows));
  const at::Tensor whole = torch::stack(lazy.of_all(rows)).sum(0);
  lazy.check(tensor, whole.slice(0, 4 * lazy.rank(), 4 * lazy.rank() + 4), "reduce_scatter");
}

void move_lazy(const LazyCase& lazy) {
  const Tensors all = lazy.of_all(4);
  const int rank = lazy.rank(), root = lazy.root();
  at::Tensor tensor = lazy.output(4);
  lazy.group.broadcast(tensor, root);
  lazy.check(tensor, all.back(), "broadcast");
  tensor = lazy.output(int64_t{4} * lazy.size());
  lazy.group.all_gather(tensor, lazy.input(4));
  lazy.check(tensor, torch::cat(all), "all_gather");
  tensor = lazy.output(int64_t{4} * lazy.size());
  lazy.group.gather(tensor, lazy.input(4), root);
  if (rank == root)
    lazy.check(tensor, torch::cat(all), "gather");
  at::Tensor part = lazy.output(4);
  lazy.group.scatter(part, rank == root ? tensor : at::Tensor(), root);
  lazy.check(part, all[static_cast<size_t>(rank)], "scatter");
  Tensors sent;
  for (const at::Tensor& theirs : lazy.of_all(int64_t{2} * lazy.size()))
    sent.push_back(theirs.slice(0, 2 * rank, 2 * rank + 2));
  tensor = lazy.output(int64_t{2} * lazy.size());
  lazy.group.all_to_all(tensor, lazy.input(int64_t{2} * lazy.size()));
  lazy.check(tensor, torch::cat(sent), "all_to_all");
}

void send_lazy(const LazyCase& lazy) {
  if (lazy.size() == 1)
    return;
  const int before = (lazy.rank() + lazy.size() - 1) % lazy.size();
  at::Tensor received = lazy.output(4);
  auto sending = lazy.group.send_async(lazy.input(4), (lazy.rank() + 1) % lazy.size(), 7);
  lazy.group.recv(received, before, 7);
  sending.wait();
  lazy.check(received, plain_of(lazy.lazy, before, 4), "send and recv");
}

// Of the backend itself: LibTorch's dispatcher, which is before it in c10d's group, gives it copies
// of lazy tensors, and lets go of what is written to them.
void check_lazy_by_backend(ProcessGroup& group, const Lazy& lazy) {
  c10d::Backend& backend = *group.c10d()->getBackend(group.device().type());
  const int size = group.size(), rank = group.rank();
  const auto check = [&](const at::Tensor& got, const at::Tensor& expected, const char* call) {
    expect(got.cpu().resolve_conj().resolve_neg().equal(expected),
           cat(call, " of a tensor that is ", lazy.name));
  };
  const auto mine = [&] {
    return lazy_of(lazy, rank, 4, group.device());
  };
  Tensors one{mine()};
  backend.allreduce(one)->wait();
  at::Tensor sum = plain_of(lazy, 0, 4);
  for (int other = 1; other < size; ++other)
    sum = sum + plain_of(lazy, other, 4);
  check(one[0], sum, "the backend's allreduce");
  std::vector<Tensors> lists(1);
  for (int other = 0; other < size; ++other)
    lists[0].push_back(mine());
  one = {mine()};
  backend.allgather(lists, one)->wait();
  for (int other = 0; other < size; ++other)
    check(
        lists[0][static_cast<size_t>(other)], plain_of(lazy, other, 4), "the backend's allgather");
  Tensors from, to;
  for (int other = 0; other < size; ++other) {
    from.push_back(mine());
    to.push_back(mine());
  }
  backend.alltoall(from, to)->wait();
  for (int other = 0; other < size; ++other)
    check(from[static_cast<size_t>(other)], plain_of(lazy, other, 4), "the backend's alltoall");
  Tensors part{mine()};
  std::vector<Tensors> parts(1);
  for (int other = 0; other < size; ++other)
    parts[0].push_back(mine());
  backend.reduce_scatter(part, parts)->wait();
  check(part[0], sum, "the backend's reduce_scatter");
}

}  // namespace

void lazy_tensors(ProcessGroup& group) {
  for (const Lazy& lazy : lazies()) {
    for (const bool lazy_outputs : {true, false}) {
      const LazyCase one{group, lazy, lazy_outputs};
      reduce_lazy(one);
      move_lazy(one);
      send_lazy(one);
    }
    if (!is_pytorchs(group))
      check_lazy_by_backend(group, lazy);
  }
}

}  // namespace muster::testing
