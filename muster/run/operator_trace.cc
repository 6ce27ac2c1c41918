// The activity calls on_step() after every step. Between two steps it registers LibTorch's
// callbacks before and after each operator, and with GPUs begins a Kineto profile; some steps later
// it ends both. A callback adds a span to the rank's event file.
#include "muster/run/operator_trace.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/run/kernel_trace.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_clock.h"

namespace muster {

namespace {

constexpr int64_t kAfterStep = 2;  // the first steps allocate and choose kernels
constexpr int64_t kUntilStep = 7;

struct OperatorBegin : at::ObserverContext {
  int64_t at_ns = activity_now();
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  return std::make_unique<OperatorBegin>();
}

// A callback may end after the window was closed, and the rank's file with it.
void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  static thread_local const uint32_t thread = ::gettid();
  Activity* const activity = Activity::get();
  if (activity == nullptr || context == nullptr)
    return;
  TraceEventFile* const events = activity->events();
  if (events == nullptr)
    return;
  events->add_span(function.name(),
                   static_cast<uint32_t>(Category::compute),
                   thread,
                   static_cast<OperatorBegin*>(context)->at_ns,
                   activity_now());
}

// The trace of what runs on GPUs, if there are any. A program that profiles itself keeps its
// profiler, and then gets a warning instead of the kernels.
class Kernels {
 public:
  void begin() {
    if (!at::hasCUDA())
      return;
    try {
      begin_profile(Profiled::gpus);
      is_on_ = true;
    } catch (const std::exception& error) {
      log_warning("--trace: GPU kernels are not traced: ", error.what());
    }
  }

  void end() {
    if (!std::exchange(is_on_, false))
      return;
    try {
      const auto spans = end_profile();
      Activity* const activity = Activity::get();
      if (activity != nullptr && activity->events() != nullptr)
        add_kernels(spans, *activity->events());
    } catch (const std::exception& error) {
      // Another thread counts the steps now, or the program has ended the profile.
      log_warning("--trace: GPU kernels are not traced: ", error.what());
    }
  }

 private:
  bool is_on_ = false;
};

// The steps that are traced. The thread that takes the steps opens and closes it.
class Window {
 public:
  void open() {
    if (handle_ != at::INVALID_CALLBACK_HANDLE)
      return;
    kernels_.begin();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(begin_operator, end_operator)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }

  void close() {
    if (handle_ == at::INVALID_CALLBACK_HANDLE)
      return;
    at::removeCallback(std::exchange(handle_, at::INVALID_CALLBACK_HANDLE));
    kernels_.end();
  }

 private:
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  Kernels kernels_;
};

// One profile at a time is possible in a process.
Window& window() {
  static Window only;
  return only;
}

void on_step(int64_t steps) {
  if (steps == kAfterStep)
    window().open();
  if (steps >= kUntilStep)
    window().close();
}

}  // namespace

void trace_operators() {
  Activity::set_step_hook(on_step);
}

void end_operator_trace() {
  window().close();
}

}  // namespace muster
