// The words of the three policies are in one table, which is read in both directions.
#include "muster/base/failure_policy.h"

#include <utility>

#include "muster/base/env.h"
#include "muster/base/lookup.h"

namespace muster {

namespace {

using PolicyWord = std::pair<FailurePolicy, const char*>;

constexpr PolicyWord kPolicyWords[] = {
    {FailurePolicy::end, "end"},
    {FailurePolicy::go_on, "continue"},
    {FailurePolicy::replace, "replace"},
};

}  // namespace

const char* to_string(FailurePolicy policy) {
  return lookup(kPolicyWords, policy, "");
}

std::optional<FailurePolicy> failure_policy_of(const std::string& word) {
  const PolicyWord* const row = element_with(kPolicyWords, word, &PolicyWord::second);
  return row != nullptr ? std::optional(row->first) : std::nullopt;
}

FailurePolicy failure_policy_from_environment() {
  const std::string word = get_env(kFailurePolicyVariable).value_or("end");
  if (const auto policy = failure_policy_of(word))
    return *policy;
  throw invalid_argument(kFailurePolicyVariable,
                         ": expected end, continue or replace, got '",
                         printable(word),
                         "'; correct it");
}

}  // namespace muster
