// main() of a rank comes to every call of muster::run, in order. Calls are told apart by counting:
// the parent passes the exit codes of the calls before the rank's own, so their number is the
// number of the rank's own call.
#include "muster/run/run_calls.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// The exit codes of this process's calls so far.
struct CallsMade {
  std::mutex mutex;
  Ints codes;
  bool came_to_ours = false;
};

CallsMade& calls_made() {
  static CallsMade calls;
  return calls;
}

// Returns the exit codes of the calls before the one that has started this process; nothing if none
// of the parent's has.
std::optional<Ints> codes_before_ours() {
  const auto text = get_env(kRunCallsVariable).value_or("");
  const size_t colon = text.find(':');
  const auto parent = parse_int(text.substr(0, colon));
  if (!parent || *parent != ::getppid() || colon == npos)
    return std::nullopt;
  Ints codes;
  if (colon + 1 == text.size())
    return codes;
  for (const auto& piece : split(text.substr(colon + 1), ',')) {
    const auto code = parse_as<int>(piece);
    if (!code) {
      throw invalid_argument("run: expected in ",
                             kRunCallsVariable,
                             " exit codes of muster::run, got '",
                             printable(text),
                             "'; unset it");
    }
    codes.push_back(*code);
  }
  return codes;
}

// Makes an end of the program before its own call an error: it would look like a success.
void end_with_error_unless_made() {
  static const size_t ours = codes_before_ours()->size();
  [[maybe_unused]] static const int registered = std::atexit([] {
    CallsMade& made = calls_made();
    const Lock lock(made.mutex);
    if (made.came_to_ours)
      return;
    log_error("run: expected this rank to reach call ",
              ours + 1,
              " of muster::run, for which it was started, got the end of the program after call ",
              made.codes.size(),
              "; let main() make the same calls in a rank as in the program that starts it");
    std::fflush(nullptr);
    ::_exit(1);
  });
}

}  // namespace

// A call before the rank's own was made by the parent, and one after it by nobody.
std::optional<int> code_of_call_made_elsewhere() {
  const auto before = codes_before_ours();
  if (!before)
    return std::nullopt;
  CallsMade& made = calls_made();
  const Lock lock(made.mutex);
  const size_t call = made.codes.size();
  if (call < before->size()) {
    end_with_error_unless_made();
    return before->at(call);
  }
  if (call > before->size())
    return made.codes.at(before->size());
  made.came_to_ours = true;
  return std::nullopt;
}

bool is_started_by_run_call() {
  return codes_before_ours().has_value();
}

void come_to_own_call() {
  CallsMade& made = calls_made();
  const Lock lock(made.mutex);
  made.came_to_ours = true;
}

void count_run_call(int exit_code) {
  CallsMade& made = calls_made();
  const Lock lock(made.mutex);
  made.codes.push_back(exit_code);
}

std::string run_calls_for_children() {
  CallsMade& made = calls_made();
  const Lock lock(made.mutex);
  return cat(::getpid(), ":", join(made.codes, ","));
}

}  // namespace muster
