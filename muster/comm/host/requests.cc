// Each function checks the tensors of one form of a collective before it takes their memory, so
// that a wrong call has copied nothing.
#include "muster/comm/host/requests.h"

#include <iterator>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Throws unless `whole` has a part as long as `part` for every rank.
void expect_parts(
    const HostCall& call, const char* name, const Tensor& whole, const Tensor& part, int ranks) {
  call.expect(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * ranks,
              cat(name, " of ", ranks, " × ", part.numel(), " ", toString(part.scalar_type())),
              cat(whole.numel(), " ", toString(whole.scalar_type())));
}

}  // namespace

// c10d has a list for each of the caller's tensors, of which there is one here.
const Tensors& list_for_all(const HostCall& call, const TensorLists& lists, int ranks) {
  call.expect(lists.size() == 1 && std::ssize(lists[0]) == ranks,
              cat("one list of ", ranks, " tensors"),
              cat(lists.empty() ? 0 : lists[0].size()));
  return lists[0];
}

// c10d has a list for each rank here, with an output for each of the inputs.
Tensors column(const HostCall& call, const TensorLists& lists, size_t i, int ranks) {
  call.expect(std::ssize(lists) == ranks, cat(ranks, " lists"), cat(lists.size()));
  return mapped(lists, [&](const Tensors& list) {
    call.expect(i < list.size(), cat(i + 1, " tensors of every rank"), cat(list.size()));
    return list[i];
  });
}

Request gather_of(HostCall& call, shm::Kind kind, const Tensors& outputs, const Tensor& input) {
  Request request = call.request(kind, input);
  request.in = {call.in(input)};
  request.out = mapped(outputs, [&](const Tensor& output) {
    call.expect_like(output, input);
    return call.out(output);
  });
  return request;
}

Request scatter_of(HostCall& call, shm::Kind kind, const Tensor& output, const Tensors& inputs) {
  Request request = call.request(kind, output);
  request.in = mapped(inputs, [&](const Tensor& input) {
    call.expect_like(input, output);
    return call.in(input);
  });
  request.out = {call.out(output)};
  return request;
}

Request all_gather_into(HostCall& call, const Tensor& output, const Tensor& input, int ranks) {
  expect_parts(call, "an output", output, input, ranks);
  Request request = call.request(shm::Kind::all_gather, input);
  request.in = {call.in(input)};
  request.out = call.split(call.out(output), ranks);
  return request;
}

Request reduce_scatter_into(HostCall& call,
                            const Tensor& output,
                            const Tensor& input,
                            const c10d::ReduceOp& op,
                            int ranks) {
  expect_parts(call, "an input", input, output, ranks);
  Request request = call.request(shm::Kind::reduce_scatter, output);
  request.op = shm_op(op);
  request.in = call.split(call.in(input), ranks);
  request.out = {call.out(output)};
  return request;
}

}  // namespace muster
