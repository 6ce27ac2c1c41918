#include "muster/supervise/leftovers.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "muster/supervise/child_exit.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A child that does nothing until a signal comes.
pid_t waiting_child() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;)
      ::pause();
  }
  return pid;
}

// Its zombie stays.
void wait_until_ended(pid_t pid) {
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, pid, &info, WEXITED | WNOWAIT), 0);
}

void reap(LeftoverSweep& sweep, pid_t pid) {
  EXPECT_THAT(without_ended({pid}, [&](pid_t ended, int status) { sweep.note_end(ended, status); }),
              IsEmpty());
}

// Whoever looks at the ends first and reaps then misses those that come in between.
TEST(LeftoverSweep, TellsWhatHasEndedOfSigtermAsItIsReaped) {
  LeftoverSweep sweep([](pid_t) { return std::string("one"); });
  const pid_t pid = waiting_child();
  sweep.ask({pid});
  wait_until_ended(pid);
  reap(sweep, pid);
  EXPECT_THAT(sweep.ended(), ElementsAre("one"));
}

TEST(LeftoverSweep, OfAnotherSignalIsNotTold) {
  LeftoverSweep sweep([](pid_t) { return std::string("one"); });
  const pid_t pid = waiting_child();
  sweep.note_asked(pid);
  ::kill(pid, SIGINT);
  wait_until_ended(pid);
  reap(sweep, pid);
  EXPECT_THAT(sweep.ended(), IsEmpty());
}

}  // namespace
}  // namespace muster
