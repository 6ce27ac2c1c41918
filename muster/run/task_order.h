// What a child of a TaskSet is told, as JSON in an environment variable. Without LibTorch, so that
// the fuzzer can link it.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/strings.h"

namespace muster {

// What a child is told.
struct TaskOrder {
  // Its purpose: to run the task's function, to launch a group's ranks, or to be such a rank.
  enum class Kind { task, launcher, rank };
  Kind kind = Kind::task;
  std::string name{};
  uint64_t number = 0;  // its index in the set
  // The names of all tasks of the set, by which the child knows which set is meant.
  Strings tasks{};
  std::string place{};
  Strings rank_places{};       // for a launcher
  std::string device = "cpu";  // as the child sees it
  std::string uuid{};          // of that device; empty: none, or a MIG instance
  int result_fd = -1;
  int stop_fd = -1;
  int plan_fd = -1;   // the plan of the task's ranks; a task alone is one
  bool lease = true;  // a launcher's
  int parent = 0;     // process id of the child's parent: grandchildren must ignore the order
};

// Not MUSTER_TASK, which `muster tasks` sets for its tasks.
inline constexpr auto kTaskVariable = "MUSTER_TASK_ORDER";

std::string order_to_json(const TaskOrder& order);

// Throws: std::exception for what order_to_json() does not write.
TaskOrder order_from_json(const std::string& text);

}  // namespace muster
