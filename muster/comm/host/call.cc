// A plain tensor on the CPU gives its own memory. Every other tensor gives a copy's: an input is
// copied when the call is put together, an output when the call is over (HostOperation::end).
#include "muster/comm/host/call.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/call/number.h"
#include "muster/comm/call/profile.h"
#include "muster/comm/host/plain_tensor.h"

namespace muster {

// Types that shared memory cannot reduce are "other": they are moved as bytes.
shm::Type shm_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return shm::Type::f64;
    case at::kFloat:
      return shm::Type::f32;
    case at::kBFloat16:
      return shm::Type::bf16;
    case at::kHalf:
      return shm::Type::f16;
    case at::kChar:
      return shm::Type::i8;
    case at::kByte:
      return shm::Type::u8;
    case at::kShort:
      return shm::Type::i16;
    case at::kInt:
      return shm::Type::i32;
    case at::kLong:
      return shm::Type::i64;
    case at::kBool:
      return shm::Type::boolean;
    case at::kComplexFloat:
      return shm::Type::c64;
    case at::kComplexDouble:
      return shm::Type::c128;
    default:
      return shm::Type::other;
  }
}

// PREMUL_SUM, which only NCCL has, is refused.
shm::Op shm_op(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return shm::Op::sum;
    case c10d::ReduceOp::AVG:
      return shm::Op::avg;
    case c10d::ReduceOp::PRODUCT:
      return shm::Op::product;
    case c10d::ReduceOp::MIN:
      return shm::Op::min;
    case c10d::ReduceOp::MAX:
      return shm::Op::max;
    case c10d::ReduceOp::BAND:
      return shm::Op::band;
    case c10d::ReduceOp::BOR:
      return shm::Op::bor;
    case c10d::ReduceOp::BXOR:
      return shm::Op::bxor;
    default:
      throw Error(
          ErrorCode::invalid_argument,
          "reduce op: expected sum, avg, product, min, max or a bit operation, got another");
  }
}

shm::Part memory_of(const at::Tensor& tensor) {
  return {.data = static_cast<std::byte*>(tensor.data_ptr()), .bytes = tensor.nbytes()};
}

shm::Part message_of(shm::Part part, const at::Tensor& tensor) {
  part.type = c10::toString(tensor.scalar_type());
  part.element = tensor.element_size();
  return part;
}

namespace {

// Contiguous memory on the host for a tensor's values. For a GPU's tensor it is pinned, so that the
// copy has the bus's speed.
at::Tensor host_room_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   tensor.options().device(at::kCPU).pinned_memory(tensor.is_cuda()));
}

// The tensor's values, plain and on the host: the tensor itself where it is so.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? plain(tensor) : host_room_for(tensor).copy_(plain(tensor));
}

}  // namespace

void HostCall::expect(bool right, const std::string& expected, const std::string& got) const {
  if (!right)
    throw Error(ErrorCode::invalid_argument, cat(name, ": expected ", expected, ", got ", got));
}

// The tensor is held, whether it is the caller's or a copy.
shm::Part HostCall::in(const at::Tensor& tensor) {
  expect_dense(name, tensor);
  held.push_back(on_host(tensor));
  return memory_of(held.back());
}

// An output that is not plain is written to a copy. It is detached, since copying back is nothing
// for autograd.
shm::Part HostCall::out(const at::Tensor& tensor, bool also_read) {
  expect_dense(name, tensor);
  outputs.push_back(tensor);
  if (tensor.is_cpu() && is_plain(tensor))
    return memory_of(tensor);
  const at::Tensor memory = also_read ? on_host(tensor) : host_room_for(tensor);
  copies.push_back({.from = memory, .to = tensor.detach()});
  const c10::Device device = tensor.device();
  if (!device.is_cpu())
    stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return memory_of(memory);
}

std::vector<shm::Part> HostCall::split(const shm::Part& whole, int ranks) const {
  const size_t bytes = whole.bytes / ranks;
  std::vector<shm::Part> parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back({.data = whole.data + rank * bytes, .bytes = bytes});
  return parts;
}

// Rows are as long as the memory divided by their number: strides do not matter in plain memory.
std::vector<shm::Part> HostCall::rows(const at::Tensor& tensor,
                                      const shm::Part& whole,
                                      const std::vector<int64_t>& splits,
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
  const size_t row = rows == 0 ? 0 : whole.bytes / rows;
  std::vector<shm::Part> parts;
  std::byte* at = whole.data;
  for (const int64_t split : splits) {
    parts.push_back({.data = at, .bytes = split * row});
    at += parts.back().bytes;
  }
  return parts;
}

// The names are those that PyTorch's own backends give to these events.
void HostCall::show_event(const std::string& backend) {
  const char* event = name;
  if (type == c10d::OpType::RECVANYSOURCE)
    event = "recvAnySource";
  if (type == c10d::OpType::_ALLREDUCE_SPARSE)
    event = "sparse_all_reduce";
  end_event = begin_event(cat(backend, ":", event), shown());
}

// Shapes may differ: what counts is how much memory there is of which type.
void HostCall::expect_like(const at::Tensor& tensor, const at::Tensor& model) const {
  expect(tensor.scalar_type() == model.scalar_type() && tensor.numel() == model.numel(),
         cat(c10::toString(model.scalar_type()), " of ", model.numel(), " elements"),
         cat(c10::toString(tensor.scalar_type()), " of ", tensor.numel()));
}

void HostCall::expect_as_many(const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& inputs) const {
  expect(outputs.size() == inputs.size(),
         "as many outputs as inputs",
         cat(outputs.size(), " and ", inputs.size()));
}

const at::Tensor& HostCall::one(const std::vector<at::Tensor>& tensors) const {
  expect(tensors.size() == 1, "one tensor", cat(tensors.size()));
  return tensors[0];
}

// Shapes of more dimensions than kComparedDims are compared in the first ones.
shm::Request HostCall::request(shm::Kind kind, const at::Tensor& part) const {
  expect_dense(name, part);
  shm::Request request{.kind = kind, .type = shm_type(part)};
  request.count = part.nbytes() / size_of(request.type);
  request.number = CallNumber::here();
  request.num_dims = part.dim();
  std::copy_n(part.sizes().begin(),
              std::min(part.sizes().size(), request.dims.size()),
              request.dims.begin());
  return request;
}

}  // namespace muster
