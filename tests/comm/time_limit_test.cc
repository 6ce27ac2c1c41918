// A call with a time limit of its own, in the steady state, where nothing is compared before it:
// each backend's own wait has the limit. (First calls are in the conformance suite.)
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/process_group.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

class TimeLimit : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, TimeLimit, ::testing::Values("gloo", "shm"));

TEST_P(TimeLimit, OfOneCallNamesTheRankThatIsLate) {
  const auto failures =
      failures_of_ranks(3,
                        [](ProcessGroup& group) {
                          auto tensor = torch::ones({4});
                          group.all_reduce(tensor);
                          if (group.rank() == 1) {
                            group.store()->wait({"gave up/0", "gave up/2"});
                            return;
                          }
                          try {
                            group.with_timeout(std::chrono::seconds(2)).all_reduce(tensor);
                          } catch (const Error& error) {
                            group.store()->set(cat("gave up/", group.rank()), "");
                            EXPECT_EQ(error.code(), ErrorCode::timeout) << error.message();
                            throw;
                          }
                        },
                        {.backend = GetParam(), .timeout = std::chrono::minutes(10)});
  EXPECT_FALSE(failures[1]) << message_of(failures[1]);
  for (const size_t rank : {0, 2}) {
    const std::string says = message_of(failures[rank]);
    EXPECT_NE(says.find("missing rank(s) 1"), std::string::npos) << says;
    EXPECT_NE(says.find("2000"), std::string::npos) << says;
  }
}

// The limit counts from the start of the call. Its backend has not given up before the wait, and
// closed the connections, without a word of who is late.
TEST_P(TimeLimit, OfACallThatIsWaitedForLate) {
  constexpr std::chrono::milliseconds kLimit{200};
  const auto failures =
      failures_of_ranks(2,
                        [&](ProcessGroup& group) {
                          auto tensor = torch::ones({4});
                          group.all_reduce(tensor);
                          if (group.rank() == 1)
                            return group.store()->wait({"gave up"});
                          Work work = group.with_timeout(kLimit).all_reduce_async(tensor);
                          std::this_thread::sleep_for(3 * kLimit);
                          try {
                            work.wait();
                          } catch (const Error&) {
                            group.store()->set("gave up", "");
                            throw;
                          }
                        },
                        {.backend = GetParam(), .timeout = std::chrono::minutes(10)});
  EXPECT_FALSE(failures[1]) << message_of(failures[1]);
  EXPECT_NE(message_of(failures[0]).find("missing rank(s) 1"), std::string::npos)
      << message_of(failures[0]);
}

}  // namespace
}  // namespace muster::testing
