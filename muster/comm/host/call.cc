// A plain tensor on the CPU gives its own memory. Every other tensor gives a copy's: an input is
// copied when the call is put together, an output when the call is over (HostOperation::end).
#include "muster/comm/host/call.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/number.h"
#include "muster/comm/call/profile.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/host/plain_tensor.h"

namespace muster {

namespace {

// Contiguous memory on the host for a tensor's values. For a GPU's tensor it is pinned, so that the
// copy has the bus's speed.
Tensor host_room_for(const Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(kCPU).pinned_memory(tensor.is_cuda()));
}

// The tensor's values, plain and on the host: the tensor itself where it is so.
Tensor on_host(const Tensor& tensor) {
  return tensor.is_cpu() ? plain(tensor) : host_room_for(tensor).copy_(plain(tensor));
}

}  // namespace

// Types that shared memory cannot reduce are "other": they are moved as bytes.
shm::Type shm_type(const Tensor& tensor) {
  constexpr std::pair<ScalarType, shm::Type> kTypes[] = {
      {kDouble, shm::Type::f64},
      {kFloat, shm::Type::f32},
      {kBFloat16, shm::Type::bf16},
      {kHalf, shm::Type::f16},
      {kChar, shm::Type::i8},
      {kByte, shm::Type::u8},
      {kShort, shm::Type::i16},
      {kInt, shm::Type::i32},
      {kLong, shm::Type::i64},
      {kBool, shm::Type::boolean},
      {kComplexFloat, shm::Type::c64},
      {kComplexDouble, shm::Type::c128},
  };
  return lookup(kTypes, tensor.scalar_type(), shm::Type::other);
}

// PREMUL_SUM, which only NCCL has, is refused.
shm::Op shm_op(const c10d::ReduceOp& op) {
  using Theirs = c10d::ReduceOp::RedOpType;
  constexpr std::pair<Theirs, std::optional<shm::Op>> kOps[] = {
      {Theirs::SUM, shm::Op::sum},
      {Theirs::AVG, shm::Op::avg},
      {Theirs::PRODUCT, shm::Op::product},
      {Theirs::MIN, shm::Op::min},
      {Theirs::MAX, shm::Op::max},
      {Theirs::BAND, shm::Op::band},
      {Theirs::BOR, shm::Op::bor},
      {Theirs::BXOR, shm::Op::bxor},
  };
  if (const std::optional<shm::Op> found = lookup(kOps, op, std::nullopt))
    return *found;
  throw invalid_argument(
      "reduce op: expected sum, avg, product, min, max or a bit operation, got another");
}

Part memory_of(const Tensor& tensor) {
  return {.data = static_cast<std::byte*>(tensor.data_ptr()), .bytes = tensor.nbytes()};
}

Part message_of(Part part, const Tensor& tensor) {
  part.type = toString(tensor.scalar_type());
  part.element = tensor.element_size();
  return part;
}

void HostCall::expect(bool right, const std::string& expected, const std::string& got) const {
  if (!right)
    throw invalid_argument(name, ": expected ", expected, ", got ", got);
}

// The tensor is held, whether it is the caller's or a copy.
Part HostCall::in(const Tensor& tensor) {
  expect_dense(name, tensor);
  held.push_back(on_host(tensor));
  return memory_of(held.back());
}

// An output that is not plain is written to a copy. It is detached, since copying back is nothing
// for autograd.
Part HostCall::out(const Tensor& tensor, bool also_read) {
  expect_dense(name, tensor);
  outputs.push_back(tensor);
  if (tensor.is_cpu() && is_plain(tensor))
    return memory_of(tensor);
  const Tensor memory = also_read ? on_host(tensor) : host_room_for(tensor);
  copies.push_back({.from = memory, .to = tensor.detach()});
  if (!tensor.is_cpu())
    stream = current_stream_of(tensor.device());
  return memory_of(memory);
}

std::vector<Part> HostCall::split(const Part& whole, int ranks) const {
  const size_t bytes = whole.bytes / ranks;
  return mapped_indices(
      ranks, [&](int rank) { return Part{.data = whole.data + rank * bytes, .bytes = bytes}; });
}

// Rows are as long as the memory divided by their number: strides do not matter in plain memory.
std::vector<Part> HostCall::rows(const Tensor& tensor,
                                 const Part& whole,
                                 const Int64s& splits,
                                 int ranks) const {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    expect(rows % ranks == 0, cat("rows that ", ranks, " ranks share"), cat(rows));
    return split(whole, ranks);
  }
  int64_t sum = 0;
  for (const int64_t split : splits) {
    expect(split >= 0, "splits of at least 0", cat(split));
    sum += split;
  }
  expect(std::ssize(splits) == ranks && sum == rows,
         cat("splits of ", rows, " rows for ", ranks, " ranks"),
         cat("[", join(splits, ", "), "]"));
  const size_t row_bytes = rows == 0 ? 0 : whole.bytes / rows;
  std::vector<Part> parts;
  std::byte* at = whole.data;
  for (const int64_t split : splits) {
    parts.push_back({.data = at, .bytes = split * row_bytes});
    at += parts.back().bytes;
  }
  return parts;
}

// The names are those that PyTorch's own backends give to these events.
void HostCall::show_event(const std::string& backend) {
  const char* event = name;
  if (type == OpType::RECVANYSOURCE)
    event = "recvAnySource";
  if (type == OpType::_ALLREDUCE_SPARSE)
    event = "sparse_all_reduce";
  end_event = begin_event(cat(backend, ":", event), shown());
}

// Shapes may differ: what counts is how much memory there is of which type.
void HostCall::expect_like(const Tensor& tensor, const Tensor& model) const {
  expect(tensor.scalar_type() == model.scalar_type() && tensor.numel() == model.numel(),
         cat(toString(model.scalar_type()), " of ", model.numel(), " elements"),
         cat(toString(tensor.scalar_type()), " of ", tensor.numel()));
}

void HostCall::expect_as_many(const Tensors& outputs, const Tensors& inputs) const {
  expect(outputs.size() == inputs.size(),
         "as many outputs as inputs",
         cat(outputs.size(), " and ", inputs.size()));
}

const Tensor& HostCall::one(const Tensors& tensors) const {
  expect(tensors.size() == 1, "one tensor", cat(tensors.size()));
  return tensors[0];
}

// Shapes of more dimensions than kComparedDims are compared in the first ones.
Request HostCall::request(shm::Kind kind, const Tensor& part) const {
  expect_dense(name, part);
  Request request{.kind = kind, .type = shm_type(part)};
  request.count = part.nbytes() / size_of(request.type);
  request.number = CallNumber::here();
  request.num_dims = part.dim();
  std::copy_n(part.sizes().begin(),
              std::min(part.sizes().size(), request.dims.size()),
              request.dims.begin());
  return request;
}

}  // namespace muster
