// What a rank does, for others to see: spans, steps and calls.
#include "muster/trace/activity.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "muster/c_api.h"
#include "muster/c_api/answer.h"
#include "muster/trace/span.h"
#include "muster/trace/stack_request.h"

namespace muster {

namespace {

static_assert(MUSTER_CATEGORIES == kActivityCategories);

Category category_of(int number) {
  return number >= 0 && number < MUSTER_CATEGORIES ? static_cast<Category>(number)
                                                   : Category::other;
}

std::string text_or_empty(const char* text) {
  return text == nullptr ? "" : text;
}

}  // namespace

}  // namespace muster

extern "C" {

int muster_activity_open(char** path) {
  const auto open = [] {
    const muster::Activity* const activity = muster::open_own_activity();
    return activity == nullptr ? std::string() : activity->path();
  };
  if (path == nullptr)
    return muster::answer([&] { open(); });
  return muster::answer_text(path, open);
}

void muster_activity_close(void) {
  if (muster::Activity* const activity = muster::Activity::get())
    activity->close();
}

void muster_note_step(int64_t step) {
  muster::note_step(step);
}

void muster_note_samples(int64_t more) {
  muster::note_samples(more);
}

void muster_note_loss(double loss) {
  muster::note_loss(loss);
}

void muster_span_begin(muster_span* span, const char* name, int category) {
  *span = {};
  muster::Activity* const activity = muster::Activity::get();
  if (activity == nullptr)
    return;
  const muster::Activity::Entered entered = activity->enter(
      name, muster::category_of(category), /*inherits=*/category == MUSTER_INHERITED);
  span->thread = entered.thread;
  span->begin_ns = entered.begin_ns;
  span->depth = entered.depth;
}

void muster_span_end(const muster_span* span) {
  muster::Activity* const activity = muster::Activity::get();
  if (activity != nullptr && span->thread != nullptr)
    activity->leave({.thread = span->thread, .depth = span->depth, .begin_ns = span->begin_ns});
}

void muster_count_outside_as(int category) {
  muster::count_outside_as(muster::category_of(category));
}

void muster_seconds(double seconds[MUSTER_CATEGORIES]) {
  const muster::Activity* const activity = muster::Activity::get();
  const auto totals_ns = activity == nullptr ? decltype(activity->totals()){} : activity->totals();
  std::ranges::transform(
      totals_ns, seconds, [](int64_t ns) { return static_cast<double>(ns) * 1e-9; });
}

uint64_t muster_call_begin(const muster_call* call) {
  muster::Activity* const activity = muster::Activity::get();
  if (activity == nullptr || call == nullptr || call->size < sizeof(muster_call))
    return 0;
  return activity->begin_call({.group = call->group,
                               .operation = call->operation,
                               .sequence = call->sequence,
                               .type = call->type == nullptr ? "" : call->type,
                               .sizes = call->sizes,
                               .dimensions = static_cast<size_t>(call->dimensions),
                               .bytes = call->bytes,
                               .peer = call->peer,
                               .tag = call->tag});
}

void muster_call_end(uint64_t number, int failed) {
  if (muster::Activity* const activity = number == 0 ? nullptr : muster::Activity::get())
    activity->end_call(number, failed != 0 ? muster::CallState::failed : muster::CallState::ended);
}

void muster_software(const char* libtorch, const char* backend, const char* device_name) {
  muster::Activity* const activity = muster::Activity::get();
  if (activity == nullptr)
    return;
  muster::answer([&] {
    activity->set_software({.libtorch = muster::text_or_empty(libtorch),
                            .backend = muster::text_or_empty(backend),
                            .device_name = muster::text_or_empty(device_name)});
  });
}

int muster_stack_signal(void) {
  return muster::stack_signal();
}

int muster_stack_file(char** path) {
  return muster::answer_text(path, [] {
    const muster::Activity* const activity = muster::Activity::get();
    return activity == nullptr ? std::string() : muster::stack_path(activity->path());
  });
}

void muster_answers_stacks(void) {
  if (muster::Activity* const activity = muster::Activity::get())
    activity->set_stack_signal(muster::stack_signal());
}

}  // extern "C"
