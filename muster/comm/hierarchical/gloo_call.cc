// A tensor that Gloo can use is given as it is. Every other is copied to one that Gloo can use; an
// output's copy is noted in rest_, and copied back when Gloo has ended.
#include "muster/comm/hierarchical/gloo_call.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/host/call.h"
#include "muster/comm/host/plain_tensor.h"

namespace muster {

namespace {

using RedOp = c10d::ReduceOp::RedOpType;

// Returns the type in which Gloo reduces values of `type`. A mean of halves is made from floats:
// their sum may be more than their type has.
ScalarType type_of_numbers(ScalarType type, RedOp op) {
  if (op == RedOp::AVG && at::isReducedFloatingType(type))
    return kFloat;
  if (type == kShort)
    return kInt;
  if (type == kBool)
    return kByte;
  return type;
}

// Returns the operation on bytes of 0 and 1 that gives the answers of `op` on truth values.
c10d::ReduceOp op_of_bytes(shm::Op op) {
  constexpr std::pair<shm::Op, RedOp> kOps[] = {{shm::Op::product, RedOp::MIN},
                                                {shm::Op::min, RedOp::MIN},
                                                {shm::Op::band, RedOp::MIN},
                                                {shm::Op::bxor, RedOp::BXOR}};
  return lookup(kOps, op, RedOp::MAX);
}

}  // namespace

void GlooCall::expect_one_kind(const Tensors& tensors) const {
  for (const Tensor& tensor : tensors) {
    expect_dense(operation_, tensor);
    expect_one_type(operation_, tensors[0], tensor);
  }
}

// For a GPU's tensor the caller's stream is remembered: what follows there must come after the
// copy.
void GlooCall::copy_back(const Tensor& from, const Tensor& to) {
  rest_.copies_.push_back({.from = from, .to = to.detach()});
  if (!to.is_cpu())
    rest_.stream_ = current_stream_of(to.device());
}

Tensor GlooCall::in(const Tensor& tensor) {
  expect_dense(operation_, tensor);
  const Tensor memory = is_plain(tensor) ? tensor : plain(tensor.detach());
  return is_known_everywhere(memory.scalar_type()) ? memory : as_bytes(memory);
}

// A copy has the output's values where Gloo also reads it.
Tensor GlooCall::out(const Tensor& tensor, bool also_read) {
  expect_dense(operation_, tensor);
  outputs_.push_back(tensor);
  Tensor memory = tensor;
  if (!is_plain(tensor)) {
    memory = also_read ? plain(tensor.detach()) : at::empty(tensor.sizes(), tensor.options());
    copy_back(memory, tensor);
  }
  return is_known_everywhere(memory.scalar_type()) ? memory : as_bytes(memory);
}

Tensors GlooCall::in(const Tensors& tensors) {
  expect_one_kind(tensors);
  return mapped(tensors, [&](const Tensor& tensor) { return in(tensor); });
}

Tensors GlooCall::out(const Tensors& tensors, bool also_read) {
  expect_one_kind(tensors);
  return mapped(tensors, [&](const Tensor& tensor) { return out(tensor, also_read); });
}

// Complex numbers are given as pairs of real ones, which add up alike.
Tensor GlooCall::number_out(const Tensor& tensor, const c10d::ReduceOp& op) {
  outputs_.push_back(tensor);
  Tensor memory = tensor;
  const ScalarType type = type_of_numbers(tensor.scalar_type(), op);
  if (!is_plain(tensor) || type != tensor.scalar_type()) {
    memory = plain(tensor.detach()).to(type);
    copy_back(memory, tensor);
  }
  return memory.is_complex() ? at::view_as_real(memory.detach()) : memory;
}

Tensors GlooCall::numbers_out(const Tensors& tensors, const c10d::ReduceOp& op) {
  expect_one_kind(tensors);
  return mapped(tensors, [&](const Tensor& tensor) { return number_out(tensor, op); });
}

// The caller's inputs must stay as they are, and Gloo reduces in place: so this is a copy.
Tensor GlooCall::numbers_of(const Tensors& inputs, const c10d::ReduceOp& op) {
  expect_one_kind(inputs);
  const Tensor all =
      at::cat(mapped(inputs, [](const Tensor& input) { return plain(input.detach()).view(-1); }));
  const Tensor numbers = all.to(type_of_numbers(all.scalar_type(), op));
  return numbers.is_complex() ? at::view_as_real(numbers).view(-1) : numbers;
}

// A type has the operations here that it has in shared memory, but for the product of complex
// numbers, which Gloo sees as pairs of real ones.
c10d::ReduceOp GlooCall::gloo_op(const Tensors& tensors, const c10d::ReduceOp& op) const {
  if (tensors.empty() || !tensors[0].defined())
    return op;
  const ScalarType type = tensors[0].scalar_type();
  const shm::Op known = shm_op(op);
  const bool complex_product = c10::isComplexType(type) && known == shm::Op::product;
  if (complex_product || shm::reduce_for(shm_type(tensors[0]), known) == nullptr) {
    throw invalid_argument(operation_,
                           ": expected an operation that ",
                           toString(type),
                           " has, got ",
                           shm::to_string(known));
  }
  return type == kBool ? op_of_bytes(known) : op;
}

void GlooCall::copy_afterwards(const Tensor& from, const Tensor& output) {
  expect_dense(operation_, output);
  outputs_.push_back(output);
  copy_back(from.view(output.sizes()), output);
}

// Numbers become complex again where the output is.
void GlooCall::copy_part_afterwards(const Tensor& numbers,
                                    int ranks,
                                    int rank,
                                    const Tensor& output) {
  const Tensor part = numbers.view({ranks, numbers.numel() / ranks})[rank];
  copy_afterwards(output.is_complex() ? at::view_as_complex(part.view({output.numel(), 2})) : part,
                  output);
}

// The caller's stream waits for the copies, which run on this thread's stream.
void GlooCall::Rest::operator()() const {
  const NoGradGuard no_grad;
  for (const Copy& copy : copies_)
    copy.to.copy_(copy.from);
  if (stream_)
    let_wait(*stream_, current_stream_of(stream_->device()));
}

}  // namespace muster
