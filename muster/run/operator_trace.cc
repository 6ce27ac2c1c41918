#include "muster/run/operator_trace.h"

#include <ATen/record_function.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "muster/trace/activity.h"
#include "muster/trace/activity_clock.h"

namespace muster {

namespace {

constexpr int64_t kAfterStep = 2;  // the first ones are unlike the others
constexpr int64_t kUntilStep = 7;

struct OperatorBegin : at::ObserverContext {
  int64_t at_ns = activity_now();
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  return std::make_unique<OperatorBegin>();
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  static thread_local const auto thread = static_cast<uint32_t>(::syscall(SYS_gettid));
  Activity* const activity = Activity::get();
  TraceEventFile* const events = activity == nullptr ? nullptr : activity->events();
  if (events == nullptr || context == nullptr) return;
  events->add_span(function.name(), static_cast<uint32_t>(Category::compute), thread,
                   static_cast<OperatorBegin*>(context)->at_ns, activity_now());
}

// By the thread that takes the steps.
void on_step(int64_t steps) {
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  if (steps == kAfterStep && handle == at::INVALID_CALLBACK_HANDLE) {
    handle =
        at::addGlobalCallback(at::RecordFunctionCallback(begin_operator, end_operator)
                                  .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  } else if (steps >= kUntilStep && handle != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

}  // namespace

void trace_operators() {
  Activity::set_step_hook(on_step);
}

}  // namespace muster
