// The wrapped models of this process. Two of them may share a parameter; one backward then belongs
// to both.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

// One wrapped model, known to the others while it lives. Thread-safe.
class LiveReducer : NoCopy {
 public:
  LiveReducer();
  ~LiveReducer();

  using Ignores = std::function<bool(const Tensor&)>;

  // The model's present parameters, which of them are trained, and which tensors it ignores. It
  // asks `ignores` in any backward of the process, while this lives.
  void set(const Tensors& parameters, const Tensors& trained, Ignores ignores);

  // Whether another model shares, or has shared, one of its parameters. Once true it stays true.
  bool shares() const { return shares_; }

  void await_backward(bool awaits) { awaits_ = awaits; }
  // Whether another model trains the parameter, and waits for a backward.
  bool another_awaits(const Tensor& parameter) const;
  // Whether gradients here are this rank's alone: those of no_sync.
  void keep_gradients(bool keeps) { keeps_gradients_ = keeps; }
  // Whether a wrapped model of this process trains the parameter, and keeps its gradients so.
  static bool any_keeps_gradient(const Tensor& parameter);
  // Whether any wrapped model of this process has the parameter.
  static bool any_has(const Tensor& parameter);
  // Whether any has the parameter, or ignores it.
  static bool any_knows(const Tensor& parameter);

 private:
  using Parameters = TensorImpls;

  bool has(const Tensor& parameter) const;

  Parameters parameters_, trained_;
  Ignores ignores_;
  std::atomic<bool> shares_ = false;
  std::atomic<bool> awaits_ = false;
  std::atomic<bool> keeps_gradients_ = false;
};

// Whether a leaf of a backward belongs to a wrapped model of this process, as a parameter that it
// averages or ignores, or as a part of a sharded model or of a divided layer.
bool is_of_wrapped_model(const Tensor& leaf);

}  // namespace muster
