#include "muster/base/failure_policy.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(FailurePolicy, EachWordIsReadAsItIsWritten) {
  for (const FailurePolicy policy :
       {FailurePolicy::end, FailurePolicy::go_on, FailurePolicy::replace})
    EXPECT_EQ(failure_policy_of(to_string(policy)), policy);
  EXPECT_STREQ(to_string(FailurePolicy::go_on), "continue");
}

TEST(FailurePolicy, AnotherWordIsNone) {
  for (const char* word : {"", "go_on", "End", "replace "})
    EXPECT_FALSE(failure_policy_of(word)) << word;
}

}  // namespace
}  // namespace muster
