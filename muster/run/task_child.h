// A task in a child process: this program, started again by exec with a variable that identifies
// the task. The child leaves its result in shared memory. For task_set.cc and task_dispatch.cc.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "muster/base/fd.h"
#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/placement/plan.h"
#include "muster/run/task_order.h"

namespace muster {

// A number shared by this process and its children; nonzero: stop.
class SharedStop : NoCopy {
 public:
  // Throws: io.
  SharedStop();
  explicit SharedStop(int fd);  // the parent's, in a child
  ~SharedStop();

  void set() { flag_->store(1); }
  const std::atomic<int>* flag() const { return flag_; }
  int fd() const { return fd_.get(); }

 private:
  void map();

  Fd fd_;
  std::atomic<int>* flag_ = nullptr;
};

// Creates named memory that can be shared with a child. Throws: io.
Fd new_task_memory(const char* name);

// Reads all of it. Throws: io.
std::string read_task_memory(int fd);

// Returns what this process was started for; nothing: not for a task. Throws: invalid_argument if
// the variable is malformed.
std::optional<TaskOrder> task_order_from_environment();

// Makes `device` current for this thread, and checks that it is the GPU with that UUID. Throws:
// unavailable.
void use_task_device(Device device, const std::string& uuid);

// A failure as text for people: an Error's message; otherwise the type and the text.
std::string text_of_failure(const std::exception_ptr& failure);

// Called in the child, with what run_task_child then returns or throws.
void answer_with_result(const TaskOrder& order, const std::string& bytes);
void answer_with_error(const TaskOrder& order, const std::string& message);  // throws nothing

// The result in an answer; nothing: it holds none.
std::optional<std::string> result_of(const std::string& answer);

struct TaskChild {
  Strings argv{};     // of the program, with its own name first
  TaskOrder order{};  // without the descriptors
  VisibilityVariables variables{};
  Ints leases{};        // descriptors of the leases on its GPUs
  int num_threads = 1;  // OMP_NUM_THREADS, unless that is set
};

// Starts the child, waits for it, and returns the bytes of its result. The child dies with the
// calling thread. A launcher and its ranks are ended when `stop` is set, because they cannot be
// asked. Blocking: until the child has ended. Throws: peer_failed with the text of its exception,
// or with how it ended without an answer; what spawn_child throws.
std::string run_task_child(const TaskChild& child, const SharedStop& stop);

}  // namespace muster
