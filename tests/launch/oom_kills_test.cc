#include "muster/launch/oom_kills.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace muster {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::vector<RankExit> killed(int count) {
  RankExit exit;
  exit.signal = SIGKILL;
  exit.cause = "killed by SIGKILL (sent by another process)";
  return std::vector<RankExit>(static_cast<size_t>(count), exit);
}

std::string cause_of(const OomKills& kills, int count = 1) {
  auto exits = killed(count);
  kills.explain(exits);
  return exits.at(0).cause;
}

TEST(OomKills, ExplainAsManyEndsAsTheKernelTells) {
  std::optional<int64_t> count = 4;
  const OomKills kills([&] { return count; });
  EXPECT_THAT(cause_of(kills), HasSubstr("sent by another process"));
  count = 5;
  EXPECT_THAT(cause_of(kills),
              StartsWith("killed by SIGKILL: out of memory (the kernel ended 1 process of"));
  EXPECT_THAT(cause_of(kills, 2), HasSubstr("sent by another process"))
      << "which of the two, nobody knows";
  count = 6;
  EXPECT_THAT(cause_of(kills, 2),
              StartsWith("killed by SIGKILL: out of memory (the kernel ended 2 processes"));
}

// A rank that was killed for want of memory was replaced; the next one is killed by somebody.
TEST(OomKills, OfAnEarlierGenerationExplainNoLaterEnd) {
  std::optional<int64_t> count = 0;
  OomKills kills([&] { return count; });
  count = 1;
  EXPECT_THAT(cause_of(kills), HasSubstr("out of memory"));
  kills.forget();
  EXPECT_THAT(cause_of(kills), HasSubstr("sent by another process"));
  count = 2;
  EXPECT_THAT(cause_of(kills), HasSubstr("the kernel ended 1 process of")) << "not 2";
}

TEST(OomKills, ExplainNothingThatMusterSentOrThatTheKernelDoesNotTell) {
  std::optional<int64_t> count = 0;
  const OomKills kills([&] { return count; });
  count = 1;
  auto sent = killed(1);
  sent[0].sent_signal = SIGTERM;
  sent[0].cause = "ended by muster";
  kills.explain(sent);
  EXPECT_EQ(sent[0].cause, "ended by muster");
  const OomKills untold([] { return std::optional<int64_t>(); });
  EXPECT_THAT(cause_of(untold), HasSubstr("sent by another process"));
}

}  // namespace
}  // namespace muster
