// The wrapped models of this process. A parameter may be in two of them, and one backward is then of both.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <set>
#include <vector>

namespace muster {

// One wrapped model, known to the others while it lives. For any thread.
class LiveReducer {
 public:
  LiveReducer();
  ~LiveReducer();
  LiveReducer(const LiveReducer&) = delete;
  LiveReducer& operator=(const LiveReducer&) = delete;

  // What the model has now, and which of that is trained.
  void set(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& trained);

  // Whether another has, or has had, one of its parameters. Once true it stays so.
  bool shares() const { return shares_; }

  void await_backward(bool awaits) { awaits_ = awaits; }
  // Whether another one trains the parameter, and waits for a backward.
  bool another_awaits(const at::Tensor& parameter) const;

 private:
  using Parameters = std::set<const c10::TensorImpl*>;

  Parameters parameters_, trained_;
  std::atomic<bool> shares_ = false;
  std::atomic<bool> awaits_ = false;
};

}  // namespace muster
