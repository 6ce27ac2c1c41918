// Makes tensors fit for Gloo, which reads and writes memory whatever the strides are, leaves lazy
// conjugations out, and knows few types. Tensors of other types are moved as bytes, and reduced as
// numbers that Gloo knows. Inside of comm/hierarchical.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

#include "muster/base/tensors.h"

namespace muster {

class GlooCall {
 public:
  explicit GlooCall(const char* operation) : operation_(operation) {}

  // Tensors to be moved, which are read (in) or written (out; and read too, where `also_read`).
  // Throws: invalid_argument for a tensor that is undefined or not dense, and for lists of more
  // than one type.
  Tensor in(const Tensor& tensor);
  Tensor out(const Tensor& tensor, bool also_read = false);
  Tensors in(const Tensors& tensors);
  Tensors out(const Tensors& tensors, bool also_read = false);

  // Tensors to be reduced by gloo_op(). numbers_out() has their values in place where Gloo knows
  // their type, else a copy that is copied back; numbers_of() has the values of all inputs, one
  // after the other, and is always a copy.
  Tensors numbers_out(const Tensors& tensors, const c10d::ReduceOp& op);
  Tensor numbers_of(const Tensors& inputs, const c10d::ReduceOp& op);
  // Throws: invalid_argument for an operation that the type does not have.
  c10d::ReduceOp gloo_op(const Tensors& tensors, const c10d::ReduceOp& op) const;

  // After the operation `output` becomes `from`, or the part of `rank` among `ranks` equal parts of
  // numbers.
  void copy_afterwards(const Tensor& from, const Tensor& output);
  void copy_part_afterwards(const Tensor& numbers, int ranks, int rank, const Tensor& output);

  struct Copy {
    Tensor from, to;  // none is the caller's own: any thread may let them go
  };
  // Does what is left to do when Gloo has ended, in Gloo's thread.
  class Rest {
   public:
    void operator()() const;
    bool empty() const { return copies_.empty(); }

   private:
    friend class GlooCall;
    std::vector<Copy> copies_;
    std::optional<c10::Stream> stream_;  // the caller's; it goes on behind the copies
  };
  const Rest& rest() const { return rest_; }
  const Tensors& outputs() const { return outputs_; }  // as the caller gave them

 private:
  void expect_one_kind(const Tensors& tensors) const;  // dense, and of one type
  Tensor number_out(const Tensor& tensor, const c10d::ReduceOp& op);
  void copy_back(const Tensor& from, const Tensor& to);

  const char* operation_;
  Tensors outputs_;
  Rest rest_;
};

}  // namespace muster
