// The wrapped models of this process. Two of them may share a parameter; one backward then belongs
// to both.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <set>
#include <vector>

namespace muster {

// One wrapped model, known to the others while it lives. Thread-safe.
class LiveReducer {
 public:
  LiveReducer();
  ~LiveReducer();
  LiveReducer(const LiveReducer&) = delete;
  LiveReducer& operator=(const LiveReducer&) = delete;

  // The model's present parameters, and which of them are trained.
  void set(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& trained);

  // Whether another model shares, or has shared, one of its parameters. Once true it stays true.
  bool shares() const { return shares_; }

  void await_backward(bool awaits) { awaits_ = awaits; }
  // Whether another model trains the parameter, and waits for a backward.
  bool another_awaits(const at::Tensor& parameter) const;
  // Whether gradients here are this rank's alone: those of no_sync.
  void keep_gradients(bool keeps) { keeps_gradients_ = keeps; }
  // Whether a wrapped model of this process trains the parameter, and keeps its gradients so.
  static bool any_keeps_gradient(const at::Tensor& parameter);
  // Whether any wrapped model of this process has the parameter.
  static bool any_has(const at::Tensor& parameter);

 private:
  using Parameters = std::set<const c10::TensorImpl*>;

  Parameters parameters_, trained_;
  std::atomic<bool> shares_ = false;
  std::atomic<bool> awaits_ = false;
  std::atomic<bool> keeps_gradients_ = false;
};

}  // namespace muster
