#include "muster/run/run_calls.h"

#include <unistd.h>

#include <mutex>
#include <vector>

#include "muster/base/env.h"

namespace muster {

namespace {

struct CallsMade {
  std::mutex mutex;
  std::vector<int> codes;
};

CallsMade& calls_made() {
  static CallsMade calls;
  return calls;
}

// Nothing where no call of our parent has started this process.
std::optional<std::vector<int>> codes_before_ours() {
  const std::string text = get_env(kRunCallsVariable).value_or("");
  const size_t colon = text.find(':');
  const auto parent = parse_int(text.substr(0, colon));
  if (!parent || *parent != ::getppid() || colon == std::string::npos) return std::nullopt;
  std::vector<int> codes;
  if (colon + 1 == text.size()) return codes;
  for (const std::string& piece : split(text.substr(colon + 1), ',')) {
    const auto code = parse_int(piece);
    if (!code) {
      throw Error(ErrorCode::invalid_argument,
                  cat("run: expected in ", kRunCallsVariable, " exit codes of muster::run, got '",
                      printable(text), "'; unset it"));
    }
    codes.push_back(static_cast<int>(*code));
  }
  return codes;
}

}  // namespace

std::optional<int> code_of_call_made_elsewhere() {
  const auto before = codes_before_ours();
  if (!before) return std::nullopt;
  CallsMade& made = calls_made();
  const std::lock_guard lock(made.mutex);
  const size_t call = made.codes.size();
  if (call == before->size()) return std::nullopt;
  return call < before->size() ? before->at(call) : made.codes.at(before->size());
}

void count_run_call(int exit_code) {
  CallsMade& made = calls_made();
  const std::lock_guard lock(made.mutex);
  made.codes.push_back(exit_code);
}

std::string run_calls_for_children() {
  CallsMade& made = calls_made();
  const std::lock_guard lock(made.mutex);
  return cat(::getpid(), ":", join(made.codes, ","));
}

}  // namespace muster
