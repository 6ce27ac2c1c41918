// Finds where each attempt's bars go in the timeline: which row, and which part of its height. For
// timeline.cc; a private header. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "muster/device/inventory.h"
#include "muster/tasks/task.h"

namespace muster {

struct TimelineBar {
  size_t task = 0;
  size_t attempt = 0;  // of TaskResult::attempts
  double began = 0;
  double ended = 0;  // of a running one: the end of the timeline
  double top = 0;    // 0 … 1 of the row's height
  double height = 1;
};

using TimelineBars = std::vector<TimelineBar>;

struct TimelineRow {
  std::string host{};
  std::string label{};   // "GPU 0", "CPU 2"
  std::string detail{};  // the GPU's model; empty: not known
  bool is_gpu = false;
  TimelineBars bars{};  // by their beginning
  double busy = 0;      // 0 … 1 of the whole time
};

struct Timeline {
  std::vector<TimelineRow> rows{};  // host by host, GPUs before CPUs
  double end = 0;                   // seconds
};

Timeline timeline_of(const TaskResults& results, const Inventory& inventory);

}  // namespace muster
