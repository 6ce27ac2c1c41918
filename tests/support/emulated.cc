// What an emulator of another processor (qemu-user) does unlike the kernel, and the cases that need
// it. Each such thing is probed; where it is missing, those cases report themselves skipped. The
// test programs link this, so no case asks itself.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

// The C library's own: the thread sanitizer's clone() takes the child for one with memory of its
// own.
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);

namespace muster::testing {
namespace {

// A child that is being started shares memory with its parent, which waits for it: clone(2),
// CLONE_VM and CLONE_VFORK.
bool starting_children_share_memory() {
  static const bool shared = [] {
    volatile int word = 0;
    alignas(16) std::array<char, 64 * 1024> stack{};
    const auto set = [](void* at) {
      return *static_cast<volatile int*>(at) = 1, 0;
    };
    const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    ::waitpid(
        __clone(set, stack.data() + stack.size(), flags, const_cast<int*>(&word)), nullptr, 0);
    return word == 1;
  }();
  return shared;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// /proc shows the program itself. An emulator answers for /proc/self/cmdline, and not for
// thread-self.
bool proc_shows_the_program() {
  static const bool shown = text_of("/proc/self/cmdline") == text_of("/proc/thread-self/cmdline");
  return shown;
}

// A program has its variables in the order in which exec got them.
bool variables_keep_their_order() {
  static const bool kept =
      *environ == nullptr || text_of("/proc/self/environ").starts_with(*environ);
  return kept;
}

// When the process began, in ticks: field 22 of proc_pid_stat(5), the 20th behind the name.
std::string start_in(const char* path) {
  const std::string text = text_of(path);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 20; ++i)
    fields >> field;
  return field;
}

// A process knows by itself when it began, as others see it.
bool others_see_when_it_began() {
  static const bool seen = start_in("/proc/self/stat") == start_in("/proc/thread-self/stat");
  return seen;
}

bool processes_can_be_adopted() {
  int adopts = 0;
  return ::prctl(PR_GET_CHILD_SUBREAPER, &adopts) == 0;
}

struct Need {
  const char* what;
  bool (*is_there)();
  std::vector<std::string_view> cases;
};

const std::vector<Need>& needs() {
  static const std::vector<Need> all = {
      {.what = "a child that is being started shares no memory with its parent",
       .is_there = starting_children_share_memory,
       .cases = {"SpawnChild.TellsExecErrorsBeforeItReturns",
                 "Tasks.AProgramThatIsNotThereIsAFailureWithItsName"}},
      {.what = "/proc shows what the emulator does with signals",
       .is_there = proc_shows_the_program,
       .cases = {"SpawnChild.KeepsNohup", "ProcessPool.AUserSignalWaitsForAProcessThatCatchesIt"}},
      {.what = "a process does not know when it began, by which others know it",
       .is_there = others_see_when_it_began,
       .cases = {"AskedRank.IsNotAskedWithoutAHandler",
                 "AskedRank.IsStoppedOrGone",
                 "AskedRank.SaysItsStack",
                 "AskedRank.SaysWhereABackwardIsThatItsMainThreadWaitsFor"}},
      {.what = "nobody can adopt processes whose parent has ended",
       .is_there = processes_can_be_adopted,
       .cases = {"ProcessPool.NothingIsLeftWhenItIsDestroyed",
                 "ProcessPool.WhatAChildLeftEndsWithIt",
                 "ProcessPool.WhatMayBeAnothersIsToldAndEndsWithThat",
                 "ProcessPool.WhatShowsNothingOfItsParentEndsWithTheOnlyOneThatItCanBeOf",
                 "ProcessPool.WhatSigtermWasEnoughForIsTold",
                 "ProcessPool.WhatWritesToAChildsOutputIsThatChilds",
                 "ProcessSet.LeavesNoDescendant"}},
      {.what = "variables of the environment change their order",
       .is_there = variables_keep_their_order,
       .cases = {"SpawnChild.GivesExactlyTheArgumentsEnvironmentAndFolder"}},
  };
  return all;
}

class SkipsWhatIsMissing : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    const std::string name = std::string(test.test_suite_name()) + "." + test.name();
    for (const Need& need : needs()) {
      if (std::ranges::find(need.cases, name) != need.cases.end() && !need.is_there())
        GTEST_SKIP() << "emulated: " << need.what;
    }
  }
};

[[maybe_unused]] const bool listens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SkipsWhatIsMissing);
  return true;
}();

}  // namespace
}  // namespace muster::testing
