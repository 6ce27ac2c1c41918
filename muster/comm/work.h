// A collective in progress. Call `wait()` before touching its tensors; it throws failures of the
// operation or of peers, and timeouts. Errors found before anything is sent are thrown by the call
// that starts it. Until it has been waited for, or is dropped, it keeps its group alive, so that
// wait() also works where no ProcessGroup is left.
#pragma once

#include <memory>
#include <utility>

namespace muster {

class Work {
 public:
  struct State;  // process_group.cc fills it in

  explicit Work(std::shared_ptr<State> state, std::shared_ptr<void> group = {})
      : group_(std::move(group)), state_(std::move(state)) {}

  // Whether wait() would return without blocking.
  bool done() const;

  // Waits until the outputs may be used (for CUDA tensors: makes the current stream wait for them).
  // Throws: peer_failed when a rank ended or left, timeout naming the missing ranks,
  // invalid_argument when the ranks called different operations (shows both), failed_precondition
  // in a forked child, backend_failed for anything else.
  void wait();

 private:
  std::shared_ptr<void> group_;
  std::shared_ptr<State> state_;
};
using WorkStatePtr = std::shared_ptr<Work::State>;

}  // namespace muster
