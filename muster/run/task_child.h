// A task in a child process: this program, started again by exec with a variable that says which task it is.
// The child leaves its result in a piece of memory that both have. For task_set.cc and task_dispatch.cc.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/fd.h"
#include "muster/placement/plan.h"

namespace muster {

// A number that this process and its children share; not 0: stop.
class SharedStop {
 public:
  // Throws: io.
  SharedStop();
  explicit SharedStop(int fd);  // the parent's, in a child
  SharedStop(const SharedStop&) = delete;
  SharedStop& operator=(const SharedStop&) = delete;
  ~SharedStop();

  void set() { flag_->store(1); }
  const std::atomic<int>* flag() const { return flag_; }
  int fd() const { return fd_.get(); }

 private:
  void map();

  Fd fd_;
  std::atomic<int>* flag_ = nullptr;
};

// What a child is told.
struct TaskOrder {
  // What for: the task's function, or a part of a group: to start its ranks, or to be one.
  enum class Kind { task, launcher, rank };
  Kind kind = Kind::task;
  std::string name = {};
  uint64_t number = 0;  // its place in the set
  std::vector<std::string> tasks =
      {};  // the names of all tasks of the set: how the child knows which set is meant
  std::string place = {};
  std::vector<std::string> rank_places = {};  // for a launcher
  c10::Device device = c10::kCPU;             // as the child sees it
  std::string uuid = {};                      // of that device; empty: none, or a MIG instance
  int result_fd = -1;
  int stop_fd = -1;
  int plan_fd = -1;   // a launcher's: its ranks' plan
  bool lease = true;  // a launcher's
  int parent = 0;     // whoever is a child of a child was not meant
};

// Not MUSTER_TASK, which is what `muster tasks` tells its tasks.
inline constexpr const char* kTaskVariable = "MUSTER_TASK_ORDER";

std::string order_to_json(const TaskOrder& order);

// Memory with a name, that a child can have too. Throws: io.
Fd new_task_memory(const char* name);

// All of it. Throws: io.
std::string read_task_memory(int fd);

// What this process was started for; nothing: not for a task.
// Throws: invalid_argument when the variable is not what a parent writes.
std::optional<TaskOrder> task_order_from_environment();

// Makes `device` current for this thread, and looks whether it is the GPU with that UUID.
// Throws: unavailable.
void use_task_device(c10::Device device, const std::string& uuid);

// What went wrong, for people: an Error's message; of others the type and the text.
std::string text_of_failure(const std::exception_ptr& failure);

// Called in the child: what run_task_child returns there, or throws.
void answer_with_result(const TaskOrder& order, const std::string& bytes);
void answer_with_error(const TaskOrder& order, const std::string& message);  // throws nothing

// The result in an answer; nothing: it is another one, or none.
std::optional<std::string> result_of(const std::string& answer);

struct TaskChild {
  std::vector<std::string> argv = {};  // of the program, its own name first
  TaskOrder order = {};                // without the descriptors
  VisibilityVariables variables = {};
  std::vector<int> leases = {};  // descriptors of those on its GPUs
  int num_threads = 1;           // OMP_NUM_THREADS, unless that is set
};

// Starts the child and waits for it; returns the bytes of its result. The child dies with the calling thread.
// A launcher is ended, with its ranks, when `stop` is set: they have no way to be asked.
// Blocking: until it has ended. Throws: peer_failed with the text of its exception, or saying how it ended
// without an answer; what spawn_child throws.
std::string run_task_child(const TaskChild& child, const SharedStop& stop);

}  // namespace muster
