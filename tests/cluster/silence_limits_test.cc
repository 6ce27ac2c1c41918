// docs/clusters.md and docs/faults.md say how long a lost host's ranks live, and when the others go
// on.
#include <gtest/gtest.h>

#include "muster/cluster/silence.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Silence, TheRanksOfALostHostHaveEndedBeforeTheOthersGoOn) {
  for (milliseconds limit = Silence::kLeast; limit <= seconds(600); limit += seconds(1)) {
    const Silence silence(limit);
    EXPECT_GE(silence.gives_itself_up_after(), limit);
    EXPECT_LE(silence.grace(), seconds(2)) << "within which it ends its ranks";
    const auto ranks_have_ended = silence.gives_itself_up_after() + silence.grace();
    EXPECT_GT(silence.is_gone_after(), ranks_have_ended);
    EXPECT_LE(silence.is_gone_after(), ranks_have_ended + seconds(2));
  }
}

TEST(Silence, TheNumbersOfThePages) {
  const Silence usual(seconds(15));
  EXPECT_EQ(usual.grace(), seconds(2));
  EXPECT_EQ(std::chrono::round<seconds>(usual.gives_itself_up_after()), seconds(16));
  EXPECT_EQ(std::chrono::round<seconds>(usual.is_gone_after() - usual.gives_itself_up_after()),
            seconds(4));
  const Silence of_the_fault_table(seconds(12));
  EXPECT_EQ(std::chrono::round<seconds>(of_the_fault_table.is_gone_after()), seconds(16));
}

}  // namespace
}  // namespace muster
