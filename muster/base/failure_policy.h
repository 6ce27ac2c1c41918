// What a job does when one of its ranks fails: `muster run --on-failure`, and MUSTER_ON_FAILURE for
// a program that starts its own ranks.
#pragma once

#include <optional>
#include <string>

namespace muster {

enum class FailurePolicy {
  end,      // the other ranks end too
  go_on,    // the rank is lost and the others go on; one success makes the job succeed
  replace,  // only the failed rank is started again
};

inline constexpr auto kFailurePolicyVariable = "MUSTER_ON_FAILURE";

// The policy as the flag and the variable spell it: "end", "continue" or "replace".
const char* to_string(FailurePolicy policy);

// Nothing for a word that is none of the three.
std::optional<FailurePolicy> failure_policy_of(const std::string& word);

// The policy that MUSTER_ON_FAILURE says; `end` where it is not set. Throws: invalid_argument
// for a word that is none of the three.
FailurePolicy failure_policy_from_environment();

}  // namespace muster
