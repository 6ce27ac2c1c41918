#include <algorithm>

#include "muster/tasks/spec/spec.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {
namespace {

constexpr size_t kMaxRangeDigits = 3;  // a million tasks are allowed, and take seconds

bool counts_far(const std::string& text) {
  for (size_t at = 0; (at = text.find("..", at)) != std::string::npos;) {
    at += 2;
    const size_t end = std::min(text.find_first_not_of("-0123456789", at), text.size());
    if (end - at > kMaxRangeDigits)
      return true;
  }
  return false;
}

}  // namespace

void fuzz_tasks(const std::string& text) {
  if (counts_far(text))
    return;
  answer_or_error([&] { tasks_of_text(text, "fuzz"); });
}

}  // namespace muster
