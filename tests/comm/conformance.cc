#include "tests/comm/conformance.h"

#include <torch/torch.h>

#include <functional>
#include <numeric>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/comm/conformance_support.h"
#include "tests/comm/conformance_types.h"

namespace muster::testing {

namespace {

// What rank `rank` holds before an operation: small whole numbers, exact in every type.
at::Tensor values(int rank, at::ScalarType type, at::IntArrayRef shape = {3, 4}) {
  int64_t count = 1;
  for (const int64_t extent : shape)
    count *= extent;
  return ((torch::arange(count, torch::kLong) % 3) + rank % 3 + 1).reshape(shape).to(type);
}

at::Tensor reduced(int size,
                   at::ScalarType type,
                   const std::function<at::Tensor(at::Tensor, at::Tensor)>& combine) {
  at::Tensor result = values(0, type);
  for (int rank = 1; rank < size; ++rank)
    result = combine(result, values(rank, type)).to(type);
  return result;
}

const std::vector<at::ScalarType> kNumbers = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte, at::kChar};

void all_reduce_every_type(ProcessGroup& group) {
  for (const auto type : kNumbers) {
    const auto check = [&](ReduceOp op,
                           const char* name,
                           const std::function<at::Tensor(at::Tensor, at::Tensor)>& combine) {
      auto tensor = values(group.rank(), type).to(group.device());
      group.all_reduce(tensor, op);
      expect_equal(
          tensor, reduced(group.size(), type, combine), cat(name, " ", c10::toString(type)));
    };
    check(ReduceOp::sum, "sum", [](auto a, auto b) { return a + b; });
    check(ReduceOp::product, "product", [](auto a, auto b) { return a * b; });
    check(ReduceOp::min, "min", [](auto a, auto b) { return torch::minimum(a, b); });
    check(ReduceOp::max, "max", [](auto a, auto b) { return torch::maximum(a, b); });
  }
}

void all_reduce_average(ProcessGroup& group) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    auto tensor = (values(group.rank(), type) * group.size()).to(group.device());
    group.all_reduce(tensor, ReduceOp::avg);
    expect_equal(tensor, reduced(group.size(), type, [](auto a, auto b) { return a + b; }), "avg");
  }
}

void refuse_bits(ProcessGroup& group) {
  for (const auto op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
    expect_error(ErrorCode::invalid_argument, "a reduction that NCCL has", [&] {
      group.all_reduce(values(group.rank(), at::kInt).to(group.device()), op);
    });
  }
}

void all_reduce_bits(ProcessGroup& group) {
  if (group.backend() == "nccl")
    return refuse_bits(group);
  for (const auto type : {at::kInt, at::kLong, at::kByte}) {
    const auto check = [&](ReduceOp op,
                           const char* name,
                           const std::function<at::Tensor(at::Tensor, at::Tensor)>& combine) {
      auto tensor = values(group.rank(), type).to(group.device());
      group.all_reduce(tensor, op);
      expect_equal(
          tensor, reduced(group.size(), type, combine), cat(name, " ", c10::toString(type)));
    };
    check(ReduceOp::band, "band", [](auto a, auto b) { return a & b; });
    check(ReduceOp::bor, "bor", [](auto a, auto b) { return a | b; });
    check(ReduceOp::bxor, "bxor", [](auto a, auto b) { return a ^ b; });
  }
}

void reduce_to_every_root(ProcessGroup& group) {
  for (int root = 0; root < group.size(); ++root) {
    auto tensor = values(group.rank(), at::kFloat).to(group.device());
    group.reduce(tensor, root);
    if (group.rank() == root) {
      expect_equal(tensor,
                   reduced(group.size(), at::kFloat, [](auto a, auto b) { return a + b; }),
                   "reduce");
    }
  }
}

void broadcast_from_every_root(ProcessGroup& group) {
  for (int root = 0; root < group.size(); ++root) {
    for (const auto type : {at::kFloat, at::kBool, at::kLong}) {
      auto tensor = values(group.rank(), type).to(group.device());
      group.broadcast(tensor, root);
      expect_equal(tensor, values(root, type), "broadcast");
    }
  }
}

void all_gather_joins(ProcessGroup& group) {
  auto output = torch::zeros({int64_t{3} * group.size(), 4}, group.device());
  group.all_gather(output, values(group.rank(), at::kFloat).to(group.device()));
  std::vector<at::Tensor> expected;
  expected.reserve(static_cast<size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank)
    expected.push_back(values(rank, at::kFloat));
  expect_equal(output, torch::cat(expected), "all_gather");
}

void reduce_scatter_splits(ProcessGroup& group) {
  const int64_t rows = group.size();
  const auto input_of = [&](int rank) {
    return values(rank, at::kFloat, {rows, 5});
  };
  auto output = torch::zeros({1, 5}, group.device());
  group.reduce_scatter(output, input_of(group.rank()).to(group.device()));
  auto sum = torch::zeros({rows, 5});
  for (int rank = 0; rank < group.size(); ++rank)
    sum += input_of(rank);
  expect_equal(output, sum.slice(0, group.rank(), group.rank() + 1), "reduce_scatter");
}

void all_to_all_equal_parts(ProcessGroup& group) {
  const int64_t size = group.size();
  auto input =
      (torch::arange(size * 2) + 100 * group.rank()).reshape({size * 2}).to(group.device());
  auto output = torch::zeros({size * 2}, input.options());
  group.all_to_all(output, input);
  std::vector<at::Tensor> expected;
  for (int64_t rank = 0; rank < size; ++rank)
    expected.push_back(torch::arange(2) + 2 * group.rank() + 100 * rank);
  expect_equal(output, torch::cat(expected), "all_to_all");
}

void all_to_all_with_splits(ProcessGroup& group) {
  // Rank r sends r + 1 rows of its number to everybody.
  const int64_t size = group.size();
  const std::vector<int64_t> input_splits(static_cast<size_t>(size), group.rank() + 1);
  std::vector<int64_t> output_splits;
  std::vector<at::Tensor> expected;
  for (int64_t rank = 0; rank < size; ++rank) {
    output_splits.push_back(rank + 1);
    expected.push_back(torch::full({rank + 1, 2}, rank));
  }
  auto input =
      torch::full({size * (group.rank() + 1), 2}, group.rank(), torch::kLong).to(group.device());
  auto output = torch::zeros({size * (size + 1) / 2, 2}, input.options());
  group.all_to_all(output, input, output_splits, input_splits);
  expect_equal(output, torch::cat(expected), "all_to_all with splits");
}

void gather_and_scatter(ProcessGroup& group) {
  for (int root = 0; root < group.size(); ++root) {
    auto all = group.rank() == root ? torch::zeros({int64_t{3} * group.size(), 4}, group.device())
                                    : at::Tensor();
    group.gather(all, values(group.rank(), at::kFloat).to(group.device()), root);
    if (group.rank() == root) {
      for (int rank = 0; rank < group.size(); ++rank) {
        expect_equal(all.slice(0, rank * 3, rank * 3 + 3), values(rank, at::kFloat), "gather");
      }
    }
    auto mine = torch::zeros({3, 4}, group.device());
    group.scatter(mine, all, root);
    expect_equal(mine, values(group.rank(), at::kFloat), "scatter");
  }
}

// Rows of rank `rank`: 0, 2, 4, … of them, so that rank 0 has none.
at::Tensor varying_rows(int rank, at::ScalarType type) {
  return values(rank, type, {int64_t{2} * rank, 3});
}

void gather_varying_lengths(ProcessGroup& group) {
  for (const auto type : kNumbers) {
    const at::Tensor mine = varying_rows(group.rank(), type).to(group.device());
    const auto check = [&](const std::vector<at::Tensor>& parts) {
      expect(std::ssize(parts) == group.size(), "a part of each rank");
      for (int rank = 0; rank < group.size(); ++rank) {
        const at::Tensor& part = parts[static_cast<size_t>(rank)];
        expect(part.device() == group.device(), "on this rank's device");
        expect_equal(part, varying_rows(rank, type), cat("gather_varying of rank ", rank));
      }
    };
    for (int root = 0; root < group.size(); ++root) {
      const auto parts = group.gather_varying(mine, root);
      expect(root == group.rank() || parts.empty(), "nothing on other ranks");
      if (root == group.rank())
        check(parts);
    }
    check(group.all_gather_varying(mine));
  }
}

// Ranks without rows need not know of what; tensors of the host stay there.
void gather_varying_of_nothing(ProcessGroup& group) {
  const bool has_rows = group.rank() == group.size() - 1;
  const at::Tensor row = torch::full({1, 2}, 7, torch::kLong);
  const auto parts = group.gather_varying(has_rows ? row.to(group.device()) : at::Tensor(), 0);
  for (const at::Tensor& part : parts) {
    const bool is_last = &part == &parts.back();
    expect(part.device() == group.device(), "on this rank's device");
    expect(part.sizes() == at::IntArrayRef({is_last ? 1 : 0, 2}), "rows of two");
  }
  if (group.rank() == 0)
    expect_equal(parts.back(), row, "the only row");
  for (const at::Tensor& part : group.all_gather_varying(at::Tensor()))
    expect(part.defined() && part.size(0) == 0, "no rows of no rank");
  for (const at::Tensor& part : group.all_gather_varying(torch::ones({group.rank(), 0, 4})))
    expect(part.is_cpu() && part.numel() == 0 && part.size(2) == 4, "rows without elements");
}

void gather_varying_of_unlike_tensors(ProcessGroup& group) {
  const bool is_last = group.rank() == group.size() - 1;
  expect_error(ErrorCode::invalid_argument, "a first dimension", [&] {
    group.gather_varying(is_last ? torch::tensor(1.0F) : torch::ones({2}), 0);
  });
  expect_error(ErrorCode::invalid_argument, cat("got ", group.size()), [&] {
    group.gather_varying(torch::ones({2}), group.size());
  });
  if (group.size() > 1) {
    expect_error(
        ErrorCode::invalid_argument, cat("Long rows of [5] on rank ", group.size() - 1), [&] {
          group.gather_varying(torch::ones({2, 5}, is_last ? torch::kLong : torch::kFloat), 0);
        });
    expect_error(ErrorCode::invalid_argument, "Float rows of [5] on rank 0", [&] {
      group.all_gather_varying(torch::ones({2, is_last ? 4 : 5}));
    });
  }
  auto after = torch::ones({4}, group.device());
  group.all_reduce(after);  // all ranks have refused together
  expect_equal(after, torch::full({4}, static_cast<float>(group.size())), "after refusals");
}

void send_and_receive_around_the_ring(ProcessGroup& group) {
  if (group.size() == 1)
    return;
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  auto received = torch::zeros({3, 4}, group.device());
  auto sending = group.send_async(values(group.rank(), at::kFloat).to(group.device()), next, 7);
  group.recv(received, before, 7);
  sending.wait();
  expect_equal(received, values(before, at::kFloat), "recv");
}

// The sender goes on, and the next message is whole. NCCL compares nothing.
void messages_that_differ_show_both_sides(ProcessGroup& group) {
  if (group.size() == 1 || group.backend() == "nccl")
    return;
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  const auto ones = [&](int64_t count, at::ScalarType type) {
    return torch::ones({count}, at::TensorOptions(type).device(group.device()));
  };
  const auto refuse = [&](const at::Tensor& sent, const at::Tensor& wanted) {
    auto sending = group.send_async(sent, next, 5);
    expect_error(ErrorCode::invalid_argument,
                 cat("expected ",
                     wanted.numel(),
                     " × ",
                     c10::toString(wanted.scalar_type()),
                     " from rank ",
                     before,
                     " with tag 5, got ",
                     sent.numel(),
                     " × ",
                     c10::toString(sent.scalar_type())),
                 [&] { group.recv(wanted, before, 5); });
    sending.wait();
  };
  refuse(ones(6, at::kFloat), ones(6, at::kInt));
  refuse(ones(50'000, at::kFloat), ones(50'000, at::kInt));
  refuse(ones(6, at::kLong), ones(4, at::kLong));
  refuse(ones(4, at::kLong), ones(6, at::kLong));
  auto got = ones(3, at::kLong);
  auto sending = group.send_async(torch::full_like(got, group.rank()), next, 5);
  group.recv(got, before, 5);
  sending.wait();
  expect_equal(got, torch::full({3}, before), "after messages that were refused");
}

void non_contiguous_tensors(ProcessGroup& group) {
  // The backend would reduce the gaps: a column of a matrix, a transposed matrix.
  auto matrix = values(group.rank(), at::kFloat).to(group.device());
  auto column = matrix.select(1, 2);
  group.all_reduce(column);
  const auto sum = reduced(group.size(), at::kFloat, [](auto a, auto b) { return a + b; });
  expect_equal(matrix.select(1, 2), sum.select(1, 2), "a column");
  expect_equal(matrix.select(1, 1), values(group.rank(), at::kFloat).select(1, 1), "its neighbour");
  auto transposed = values(group.rank(), at::kFloat).to(group.device()).t();
  group.broadcast(transposed, 0);
  expect_equal(transposed, values(0, at::kFloat).t(), "a transposed matrix");
}

void many_in_flight(ProcessGroup& group) {
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 16; ++i) {
    tensors.push_back(torch::full({1000 + i}, group.rank() + i, torch::kFloat).to(group.device()));
    works.push_back(group.all_reduce_async(tensors.back()));
  }
  auto behind = torch::full({3}, 2, torch::kFloat).to(group.device());
  group.all_reduce(behind);  // whose caller waits, while the others are under way
  expect_equal(
      behind, torch::full({3}, 2.0F * static_cast<float>(group.size())), "behind those in flight");
  for (auto& work : works)
    work.wait();
  for (int i = 0; i < 16; ++i) {
    const int ranks = group.size() * (group.size() - 1) / 2;  // 0 + 1 + … of every rank's number
    const auto sum = static_cast<float>(ranks + i * group.size());
    expect_equal(tensors[static_cast<size_t>(i)], torch::full({1000 + i}, sum), "in flight");
  }
}

void large_and_tiny(ProcessGroup& group) {
  // No power of two, and no multiple of any number of ranks.
  for (const int64_t count : {40'009, 5'000'011}) {
    const auto place = torch::arange(count, at::kFloat).remainder(101);
    auto large = (place + group.rank()).to(group.device());
    group.all_reduce(large);
    expect_equal(large,
                 place * group.size() + group.size() * (group.size() - 1) / 2,
                 cat(count, " elements"));
  }
  auto scalar = torch::tensor(1.0F).to(group.device());
  group.all_reduce(scalar);
  expect_equal(scalar, torch::tensor(static_cast<float>(group.size())), "a scalar");
}

void bytes(ProcessGroup& group) {
  std::string text = group.rank() == 0 ? std::string("from\0zero", 9) : "mine";
  group.broadcast_bytes(text, 0);
  expect(text == std::string("from\0zero", 9), "broadcast_bytes");
  std::string empty = group.rank() == 0 ? "" : "not empty";
  group.broadcast_bytes(empty, 0);
  expect(empty.empty(), "broadcast_bytes of nothing");
  const auto all = group.all_gather_bytes(std::string(static_cast<size_t>(group.rank()), 'x'));
  for (int rank = 0; rank < group.size(); ++rank) {
    expect(all[static_cast<size_t>(rank)].size() == static_cast<size_t>(rank), "all_gather_bytes");
  }
}

void barriers(ProcessGroup& group) {
  for (int i = 0; i < 3; ++i)
    group.barrier();
}

void sub_groups(ProcessGroup& group) {
  // Even and odd ranks work at the same time; then a group in another order; then one of one.
  std::vector<int> even, odd;
  for (int rank = 0; rank < group.size(); ++rank)
    (rank % 2 == 0 ? even : odd).push_back(rank);
  auto evens = group.new_group(even);
  auto odds = odd.empty() ? std::nullopt : group.new_group(odd);
  expect(evens.has_value() == (group.rank() % 2 == 0), "membership");
  auto& mine = evens ? evens : odds;
  const auto& members = evens ? even : odd;
  auto tensor = torch::tensor({static_cast<float>(group.rank())}).to(group.device());
  mine->all_reduce(tensor);
  float sum = 0;
  for (const int rank : members)
    sum += static_cast<float>(rank);
  expect_equal(tensor, torch::tensor({sum}), "all_reduce in a sub-group");
  expect(mine->parent_rank(mine->rank()) == group.rank(), "parent_rank");
  mine->shutdown();

  std::vector<int> backwards;
  for (int rank = group.size() - 1; rank >= 0; --rank)
    backwards.push_back(rank);
  auto reversed = group.new_group(backwards);
  expect(reversed->rank() == group.size() - 1 - group.rank(), "order of ranks");
  auto first = torch::tensor({group.rank()}).to(group.device());
  reversed->broadcast(first, 0);
  expect_equal(first, torch::tensor({group.size() - 1}), "rank 0 of the reversed group");
  reversed->shutdown();
  expect_error(ErrorCode::invalid_argument, "new_group", [&] { group.new_group({0, 0}); });
}

void expect_whole(ProcessGroup& group) {
  group.barrier();
  auto sum = torch::ones({5}, group.device());
  group.all_reduce(sum);
  expect_equal(sum, torch::full({5}, static_cast<float>(group.size())), "the sum after an error");
}

void sum_of_other_lengths(ProcessGroup& group, int64_t length) {
  const bool is_last = group.rank() == group.size() - 1;
  auto values = torch::ones({is_last ? length + 1 : length}, group.device());
  expect_error(ErrorCode::invalid_argument, "expected the same call on every rank", [&] {
    group.all_reduce(values);
  });
}

// A program may catch the error, and go on. NCCL compares nothing.
void calls_that_differ_leave_the_group_whole(ProcessGroup& group) {
  if (group.size() == 1 || group.backend() == "nccl")
    return;
  for (const int64_t length : {4321, 54'321}) {
    sum_of_other_lengths(group, length);
    expect_whole(group);
  }
}

// Ranks that have made the call before begin it at once, and have left it then.
void a_call_that_some_have_begun_ends_the_group(ProcessGroup& group) {
  if (group.size() == 1 || group.backend() == "nccl")
    return;
  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  auto own = group.new_group(all);
  auto known = torch::ones({4}, group.device());
  own->all_reduce(known);
  sum_of_other_lengths(*own, 4);
  if (group.backend() == "shm")
    expect_whole(*own);
  else  // a rank has left the call itself, or hears that others have
    expect_error(
        group.rank() == group.size() - 1 ? ErrorCode::peer_failed : ErrorCode::failed_precondition,
        "make a new one",
        [&] { own->barrier(); });
  expect_whole(group);
}

void lists_of_ranks_that_differ_are_an_error(ProcessGroup& group) {
  if (group.size() == 1)
    return;
  const bool is_last = group.rank() == group.size() - 1;
  const std::vector<int> list = is_last ? std::vector{1, 0} : std::vector{0, 1};
  expect_error(ErrorCode::invalid_argument, "[1, 0]", [&] { group.new_group(list); });
  expect_whole(group);
}

void bad_arguments(ProcessGroup& group) {
  const auto good = torch::ones({4}, group.device());
  expect_error(
      ErrorCode::invalid_argument, "an undefined one", [&] { group.all_reduce(at::Tensor()); });
  expect_error(ErrorCode::invalid_argument, cat("got ", group.size()), [&] {
    group.broadcast(good, group.size());
  });
  expect_error(ErrorCode::invalid_argument, "got -1", [&] { group.reduce(good, -1); });
  expect_error(
      ErrorCode::invalid_argument, "another rank", [&] { group.send(good, group.rank()); });
  expect_error(ErrorCode::invalid_argument, "expected output to hold", [&] {
    group.all_gather(torch::ones({4 * group.size() + 1}, group.device()), good);
  });
  expect_error(ErrorCode::invalid_argument, "a tensor on", [&] {
    group.all_reduce(torch::ones({2}, torch::kMeta));
  });
  expect_error(ErrorCode::invalid_argument, "a dense tensor", [&] {
    group.all_reduce(torch::eye(3).to_sparse());
  });
  expect_error(ErrorCode::invalid_argument, "splits", [&] {
    group.all_to_all(torch::ones({group.size()}),
                     torch::ones({group.size()}),
                     {},
                     std::vector<int64_t>(static_cast<size_t>(group.size()), 2));
  });
  auto after = torch::ones({4}, group.device());
  group.all_reduce(after);  // none of the refused calls reached the others
  expect_equal(after, torch::full({4}, static_cast<float>(group.size())), "after refused calls");
}

// A Work keeps what it needs: its group may be shut down, or let go, before it is waited for.
// An output may lie over its input: at this rank's place in the whole, at another, or all over it.
void outputs_over_inputs(ProcessGroup& group) {
  const int size = group.size();
  const auto whole = [&](int rank) {
    return torch::arange(size * 2, torch::kFloat).add(100 * rank).to(group.device());
  };
  const auto of_all = [&](int place) {  // that part of every rank's whole
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < size; ++rank)
      parts.push_back(whole(rank).narrow(0, 2 * place, 2));
    return torch::cat(parts);
  };
  const int mine = group.rank();
  auto exchanged = whole(mine);
  group.all_to_all(exchanged, exchanged);
  expect_equal(exchanged, of_all(mine), "all_to_all in place");
  for (int place = 0; place < size; ++place) {
    const auto part_of = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, 2 * place, 2);
    };
    auto scattered = whole(0);
    group.scatter(part_of(scattered), scattered, 0);
    expect_equal(part_of(scattered), whole(0).narrow(0, 2 * mine, 2), "scatter into its input");
    auto gathered = whole(mine);
    group.gather(gathered, part_of(gathered), 0);
    if (mine == 0)
      expect_equal(gathered, of_all(place), "gather of a part of its output");
    auto gathered_by_all = whole(mine);
    group.all_gather(gathered_by_all, part_of(gathered_by_all));
    expect_equal(gathered_by_all, of_all(place), "all_gather of a part of its output");
    auto reduced = whole(mine);
    group.reduce_scatter(part_of(reduced), reduced);
    expect_equal(
        part_of(reduced), of_all(mine).view({size, 2}).sum(0), "reduce_scatter into its input");
  }
}

// The first wait of copies of a Work brings the result. Later ones leave what was written since.
void copies_of_works(ProcessGroup& group) {
  auto strided = torch::ones({3, 2}, group.device()).t();
  auto work = group.all_reduce_async(strided);
  auto copy = work;
  copy.wait();
  expect_equal(strided, torch::full({2, 3}, group.size(), torch::kFloat), "of the first wait");
  strided.fill_(-1);
  work.wait();
  expect_equal(strided, torch::full({2, 3}, -1, torch::kFloat), "of the second wait");
}

// Ranks may have quantized with scales of their own, which no call sends.
void quantized_tensors(ProcessGroup& group) {
  const auto quantized = torch::quantize_per_tensor(torch::ones({3}), 0.5, 0, torch::kQInt8);
  expect_error(ErrorCode::invalid_argument, "the quantized QInt8 [3]", [&] {
    group.broadcast(quantized, 0);
  });
}

void works_outlive_their_groups(ProcessGroup& group) {
  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  const bool late = group.rank() == group.size() - 1;
  const auto size = static_cast<float>(group.size());
  for (const bool is_shut_down : {true, false}) {
    if (!is_shut_down && group.backend() == "mpi")
      break;  // a group that is let go ends the use of MPI
    auto own = group.new_group(all);
    auto tensor = torch::ones({4}, group.device());
    own->all_reduce(tensor);  // so that the next one is compared with nobody before it begins
    std::optional<Work> work;
    if (!late)
      work = own->all_reduce_async(tensor);
    if (!late && !is_shut_down)
      own.reset();
    group.barrier();
    if (late)
      work = own->all_reduce_async(tensor);
    if (is_shut_down)
      own->shutdown();
    own.reset();
    work->wait();
    expect_equal(tensor, torch::full({4}, size * size), "of a group that is gone");
  }
}

// Calls with a time limit of their own, in groups of the check's own: what runs into its limit ends
// its group. (Over MPI it ends the use of MPI.)
void own_time_limits(ProcessGroup& group) {
  const ProcessGroup patient = group.with_timeout(std::chrono::minutes(2));
  auto sum = torch::ones({3}, group.device());
  ProcessGroup(patient).all_reduce(sum);
  expect_equal(
      sum, torch::full({3}, static_cast<float>(group.size())), "with a limit that is kept");
  expect(patient.rank() == group.rank() && patient.traffic().calls == group.traffic().calls,
         "expected a value of the same group");
  expect_error(ErrorCode::invalid_argument, "more than 0 ms", [&] {
    (void)group.with_timeout(std::chrono::seconds(0));
  });
  if (group.size() == 1 || group.backend() == "mpi" || group.backend() == "nccl")
    return;

  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  const int late = group.size() - 1;
  const std::string names_it = cat("missing rank(s) ", late);
  const std::pair<std::function<void(ProcessGroup&)>, std::string> calls[] = {
      {[](ProcessGroup& limited) { limited.all_reduce(torch::ones({4})); }, names_it},
      {[](ProcessGroup& limited) {
         limited.all_gather_async(torch::empty({limited.size()}), torch::ones({1})).wait();
       },
       names_it},
      {[](ProcessGroup& limited) { limited.barrier(); }, names_it},
      {[](ProcessGroup& limited) { limited.all_gather_bytes("few"); }, names_it},
      {[late](ProcessGroup& limited) { limited.recv(torch::ones({4}), late); }, "imed out"}};
  for (const auto& [call, says] : calls) {
    const auto own = group.new_group(all);
    if (group.rank() != late) {
      ProcessGroup limited = own->with_timeout(std::chrono::milliseconds(200));
      expect_error(ErrorCode::timeout, says, [&call = call, &limited] { call(limited); });
    }
    group.barrier();  // the late one keeps its connections until the others have given up
  }
}

}  // namespace

const std::vector<ConformanceCheck>& conformance_checks() {
  static const std::vector<ConformanceCheck> checks = {
      {"AllReduceEveryType", all_reduce_every_type},
      {"AllReduceAverage", all_reduce_average},
      {"AllReduceBits", all_reduce_bits},
      {"ReduceToEveryRoot", reduce_to_every_root},
      {"BroadcastFromEveryRoot", broadcast_from_every_root},
      {"AllGatherJoins", all_gather_joins},
      {"ReduceScatterSplits", reduce_scatter_splits},
      {"AllToAllEqualParts", all_to_all_equal_parts},
      {"AllToAllWithSplits", all_to_all_with_splits},
      {"GatherAndScatter", gather_and_scatter},
      {"GatherVaryingLengths", gather_varying_lengths},
      {"GatherVaryingOfNothing", gather_varying_of_nothing},
      {"GatherVaryingOfUnlikeTensors", gather_varying_of_unlike_tensors},
      {"SendAndReceiveAroundTheRing", send_and_receive_around_the_ring},
      {"MessagesThatDifferShowBothSides", messages_that_differ_show_both_sides},
      {"NonContiguousTensors", non_contiguous_tensors},
      {"EveryTypeIsMoved", every_type_is_moved},
      {"EveryTypeIsMovedByC10d", every_type_is_moved_by_c10d},
      {"EveryTypeIsReducedOrRefused", every_type_is_reduced_or_refused},
      {"LazyTensors", lazy_tensors},
      {"ManyInFlight", many_in_flight},
      {"LargeAndTiny", large_and_tiny},
      {"Bytes", bytes},
      {"Barriers", barriers},
      {"SubGroups", sub_groups},
      {"CallsThatDifferLeaveTheGroupWhole", calls_that_differ_leave_the_group_whole},
      {"ACallThatSomeHaveBegunEndsTheGroup", a_call_that_some_have_begun_ends_the_group},
      {"ListsOfRanksThatDifferAreAnError", lists_of_ranks_that_differ_are_an_error},
      {"BadArguments", bad_arguments},
      {"OutputsOverInputs", outputs_over_inputs},
      {"CopiesOfWorks", copies_of_works},
      {"QuantizedTensors", quantized_tensors},
      {"WorksOutliveTheirGroups", works_outlive_their_groups},
      {"OwnTimeLimits", own_time_limits},
  };
  return checks;
}

}  // namespace muster::testing
