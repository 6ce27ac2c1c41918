// A collective under way. `wait()` it before touching its tensors; failures of the operation, its peers or
// its deadline come out of `wait()`. (What is wrong before anything is sent, the call that starts it throws.)
#pragma once

#include <memory>
#include <utility>

namespace muster {

class Work {
 public:
  struct State;  // process_group.cc fills it in

  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // True once wait() would not block.
  bool done() const;

  // Blocks until the outputs may be used (for CUDA tensors: until the current stream waits for them).
  // Throws: peer_failed when a rank ended or left, timeout naming the ranks that did not come,
  // invalid_argument when the ranks called different operations (both sides shown), backend_failed for
  // anything else.
  void wait();

 private:
  std::shared_ptr<State> state_;
};

}  // namespace muster
