// The activity file of this process, and what users tell it. How it works: the file is opened once,
// with the first question for it, from what the launcher has put into the environment; without a
// run folder there is none, and everything here does nothing.
#include <pthread.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/late_ranks.h"
#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// The number in a variable; `otherwise` when it is unset, or no number that counts something.
int told_number(const char* name, int otherwise) {
  const auto value = get_env_int(name);
  return value && *value >= 0 && *value <= INT32_MAX ? static_cast<int>(*value) : otherwise;
}

// A forked child has the mapping too, and is another process: it writes nothing there.
void forget_in_child() {
  Activity::set(nullptr);
}

void open_once() {
  const auto run_dir = get_env("MUSTER_RUN_DIR");
  const auto rank = get_env("RANK");
  if (!run_dir || !rank)
    return;
  const ActivityOwner owner{.rank = told_number("RANK", 0),
                            .world_size = told_number("WORLD_SIZE", 1),
                            .attempt = told_number("MUSTER_ATTEMPT", 0),
                            .device = get_env("MUSTER_DEVICE").value_or("")};
  try {
    // Never destroyed: threads write to it until the process has ended.
    Activity::set(new Activity(activity_path(*run_dir, owner.attempt, owner.rank), owner));
    ::pthread_atfork(nullptr, nullptr, forget_in_child);
    if (trace_is_asked())
      Activity::get()->trace_into(event_path(*run_dir, owner.attempt, owner.rank));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::failed_precondition)
      return;  // a program that the rank has started
    warn(cat(error.message(), "; the rank goes on without telling what it does"));
  }
}

}  // namespace

const char* to_string(Category category) {
  constexpr const char* kNames[] = {"other", "compute", "communication", "data", "checkpoint"};
  const size_t index = index_of(category);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// The answer is the same for the whole process, and so is the warning.
bool trace_is_asked() {
  static const bool is_asked = [] {
    const std::string asked = get_env("MUSTER_TRACE").value_or("0");
    if (asked != "0" && asked != "1" && asked != "operators")
      warn(cat("MUSTER_TRACE: expected 0, 1 or operators, got '", asked, "'; nothing is traced"));
    return asked == "1" || asked == "operators";
  }();
  return is_asked;
}

std::string activity_path(const std::string& run_dir, int attempt, int rank) {
  return cat(run_dir, "/activity/", attempt, "/", rank);
}

// Later calls find what the first one has opened.
Activity* open_own_activity() {
  static std::once_flag once;
  std::call_once(once, open_once);
  return Activity::get();
}

Span::Span(const char* name) noexcept : Span(name, Category::other, /*inherits=*/true) {}

Span::Span(const char* name, Category category) noexcept
    : Span(name, category, /*inherits=*/false) {}

Span::Span(const char* name, Category category, bool inherits) noexcept {
  Activity* const activity = Activity::get();
  if (activity == nullptr)
    return;
  const Activity::Entered entered = activity->enter(name, category, inherits);
  thread_ = entered.thread;
  depth_ = entered.depth;
  begin_ns_ = entered.begin_ns;
}

// The activity may have gone meanwhile, in a forked child.
Span::~Span() {
  if (thread_ == nullptr)
    return;
  if (Activity* const activity = Activity::get())
    activity->leave({.thread = thread_, .depth = depth_, .begin_ns = begin_ns_});
}

void count_outside_as(Category category) noexcept {
  if (Activity* const activity = Activity::get())
    activity->set_category_outside(category);
}
void note_step(int64_t step) noexcept {
  if (Activity* const activity = Activity::get())
    activity->note_step(step);
}
void note_samples(int64_t more) noexcept {
  if (Activity* const activity = Activity::get())
    activity->note_samples(more);
}
void note_loss(double loss) noexcept {
  if (Activity* const activity = Activity::get())
    activity->note_loss(loss);
}

}  // namespace muster
