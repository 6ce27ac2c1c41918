// The words of the three policies are in one table, which is read in both directions.
#include "muster/base/failure_policy.h"

#include <algorithm>
#include <iterator>

#include "muster/base/env.h"

namespace muster {

namespace {

struct PolicyWord {
  FailurePolicy policy;
  const char* word;
};

constexpr PolicyWord kPolicyWords[] = {
    {FailurePolicy::end, "end"},
    {FailurePolicy::go_on, "continue"},
    {FailurePolicy::replace, "replace"},
};

}  // namespace

const char* to_string(FailurePolicy policy) {
  return std::ranges::find(kPolicyWords, policy, &PolicyWord::policy)->word;
}

std::optional<FailurePolicy> failure_policy_of(const std::string& word) {
  const auto* const found = std::ranges::find(kPolicyWords, word, &PolicyWord::word);
  if (found == std::end(kPolicyWords))
    return std::nullopt;
  return found->policy;
}

FailurePolicy failure_policy_from_environment() {
  const std::string word = get_env(kFailurePolicyVariable).value_or("end");
  if (const auto policy = failure_policy_of(word))
    return *policy;
  throw Error(ErrorCode::invalid_argument,
              cat(kFailurePolicyVariable,
                  ": expected end, continue or replace, got '",
                  printable(word),
                  "'; correct it"));
}

}  // namespace muster
