#include "muster/launch/local_ranks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/port.h"
#include "muster/launch/replacement.h"
#include "muster/supervise/descendants.h"
#include "muster/supervise/event_loop.h"
#include "tests/device/scratch.h"
#include "tests/support/stranger.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

// Standard error goes to a file, which ranks may read, while this lives.
class StderrTo {
 public:
  explicit StderrTo(const std::string& path) : before_(::dup(STDERR_FILENO)) {
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    ::dup2(file.get(), STDERR_FILENO);
  }
  StderrTo(const StderrTo&) = delete;
  StderrTo& operator=(const StderrTo&) = delete;
  ~StderrTo() { ::dup2(before_.get(), STDERR_FILENO); }

 private:
  Fd before_;
};

std::vector<RankSpec> shells(const std::vector<std::string>& scripts, const ScratchFolder& folder) {
  std::vector<RankSpec> specs;
  for (const std::string& script : scripts) {
    RankSpec spec;
    spec.rank = spec.local_rank = static_cast<int>(specs.size());
    spec.argv = {"sh", "-c", cat("cd ", folder.path(), "; ", script)};
    spec.program = "/bin/sh";
    spec.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
    spec.error_file = cat(folder.path(), "/logs/", spec.rank, ".error.json");
    specs.push_back(spec);
  }
  return specs;
}

// What run_local_ranks says when rank 1 ends with `code` at once and rank 0 goes on until `until`
// is true.
std::string said(const std::string& until, int code, milliseconds early_end_after) {
  const ScratchFolder folder;
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    const auto specs = shells({cat("until ", until, "; do :; done"), cat("exit ", code)}, folder);
    run_local_ranks(processes, specs, {}, {.early_end_after = early_end_after});
  }
  return read_file(folder.path() + "/err");
}

TEST(RunLocalRanks, WritesToNoLogThroughALink) {
  const ScratchFolder folder;
  const std::string precious = folder.write("elsewhere/0.err", "text");
  auto specs = shells({"echo yes >&2"}, folder);
  specs[0].err.file = folder.path() + "/logs/0.err";
  std::filesystem::create_directory_symlink(folder.path() + "/elsewhere", folder.path() + "/logs");
  ProcessSet processes;
  EXPECT_THROW(run_local_ranks(processes, specs, {}, {}), Error);
  std::filesystem::remove(folder.path() + "/logs");
  std::filesystem::create_directory(folder.path() + "/logs");
  std::filesystem::create_symlink(precious, folder.path() + "/logs/0.err");
  EXPECT_THROW(run_local_ranks(processes, specs, {}, {}), Error);
  EXPECT_EQ(read_file(precious), "text");
}

TEST(RunLocalRanks, SaysWhenSomeHaveEndedWellAndOthersGoOn) {
  EXPECT_THAT(said("grep -q 'goes on' err", 0, milliseconds(1)),
              HasSubstr("rank 1 has ended with exit code 0, the first 1ms ago; rank 0 goes on\n"));
}

// Rank 0 loses its connection, says so and aborts; rank 1, which closed it, ends once the launcher
// has seen that.
TEST(RunLocalRanks, AwaitsTheRankThatALostConnectionIsTheConsequenceOf) {
  const ScratchFolder folder;
  GroupResult result;
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    const auto specs =
        shells({"echo 'RuntimeError: [/gloo/transport/tcp/pair.cc:5] Connection closed by "
                "peer [127.0.0.1]:7' >&2; kill -ABRT $$",
                "until [ -e seen ]; do :; done; exit 5"},
               folder);
    const auto on_failed = [&](const RankExit&) {
      std::ofstream(folder.path() + "/seen");
    };
    result = run_local_ranks(processes, specs, {}, {.on_rank_failed = on_failed});
  }
  const RankExit* first = first_failure(result.exits);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->rank, 1);
  EXPECT_EQ(first->exit_code, 5);
  EXPECT_EQ(first->sent_signal, 0);
}

// Rank 1 closed the connection, and goes on for longer than anybody waits for it.
TEST(RunLocalRanks, NamesNoCauseThatTakesTooLongToEnd) {
  const ScratchFolder folder;
  GroupResult result;
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    const auto specs =
        shells({"echo 'RuntimeError: [/gloo/transport/tcp/pair.cc:5] Connection closed by "
                "peer [127.0.0.1]:7' >&2; exit 1",
                "trap 'exit 3' TERM; while :; do sleep 0.01; done"},
               folder);
    result = run_local_ranks(processes, specs, {}, {});
  }
  const RankExit* first = first_failure(result.exits);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->rank, 0);
  EXPECT_FALSE(is_cause_known(result.exits, *first));
  EXPECT_THAT(doubt_about(result.exits, *first), HasSubstr("when muster ended rank 1"));
}

// A launcher of its own, so that the stranger is none of its descendants. Its rank fails a moment
// after that has begun to listen, and before the launcher looks again by itself.
TEST(RunLocalRanks, ARankThatFailsOfAStrangerIsNotToldOf) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  const ScratchFolder folder;
  const PortReservation port(0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    bool told = false;
    ProcessSet processes;
    const auto specs = shells({"sleep 1; touch up; until [ -e go ]; do :; done; exit 98"}, folder);
    const GroupResult result = run_local_ranks(
        processes, specs, {}, {.master_port = port.port(), .on_rank_failed = [&](const RankExit&) {
                                 told = true;
                               }});
    ::_exit(result.fault.empty() ? 1 : told ? 2 : 0);
  }
  while (!std::filesystem::exists(folder.path() + "/up"))
    ::usleep(1'000);
  const Stranger stranger(port.port());
  folder.write("go", "");
  int status = 0;
  ::waitpid(launcher, &status, 0);
  EXPECT_EQ(status, 0) << "1: the stranger was not seen; 2: the rank was blamed";
}

// Rank 0 ends only once the launcher has said that rank 1 is lost.
TEST(RunLocalRanks, GoesOnWithoutARankThatFails) {
  const ScratchFolder folder;
  GroupResult result;
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    const auto specs = shells({"until grep -q 'is lost' err; do :; done", "kill -KILL $$"}, folder);
    result = run_local_ranks(processes, specs, {}, {.failure_policy = FailurePolicy::go_on});
  }
  ASSERT_EQ(result.exits.size(), 2u);
  EXPECT_EQ(result.exits[0].signal, SIGKILL);
  EXPECT_FALSE(result.exits[1].failed());
  EXPECT_EQ(result.exits[1].sent_signal, 0);
  const std::string err = read_file(folder.path() + "/err");
  EXPECT_THAT(err, HasSubstr("rank 1 is lost: killed by SIGKILL"));
  EXPECT_THAT(err, HasSubstr("; 1 rank goes on (--on-failure continue)"));
}

// Rank 1 is killed twice. Rank 0 goes on until the second process in its place has come to its end.
TEST(RunLocalRanks, StartsOthersInPlaceOfRanksThatFail) {
  const ScratchFolder folder;
  std::vector<std::set<int>> left;
  Replacing replacing;
  std::vector<std::string> told;
  replacing.replace = [&](const RankFailures& failures) {
    EXPECT_EQ(failures.failed.at(0).signal, SIGKILL);
    left.push_back(failures.left);
    const char* const next = left.size() == 1 ? "kill -KILL $$" : "touch replaced";
    replacing.go_on({.number = static_cast<int>(left.size()),
                     .specs = shells({"", next}, folder),
                     .pause = milliseconds(left.size())});
    return true;
  };
  replacing.announce =
      [&](const std::string& process, const NextGeneration& next, const RankSpec& spec) {
        told.push_back(cat(process, " is rank ", spec.rank, " of ", next.number));
      };
  replacing.has_come = [](const std::string&, int) {
    return true;
  };
  ProcessSet processes;
  const auto specs = shells({"until [ -e replaced ]; do :; done", "kill -KILL $$"}, folder);
  const GroupResult result = run_local_ranks(processes, specs, {}, {.replacing = &replacing});
  EXPECT_THAT(left, testing::ElementsAre(std::set<int>{0}, std::set<int>{0}));
  EXPECT_THAT(told, testing::ElementsAre("0/0 is rank 0 of 1", "0/0 is rank 0 of 2"));
  ASSERT_EQ(result.exits.size(), 2u) << "those that were replaced are not among them";
  for (const RankExit& exit : result.exits)
    EXPECT_FALSE(exit.failed());
}

// Leaves this process no descriptor while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Gives the descriptors back once the text is said.
void give_back_once(EventLoop& loop,
                    std::optional<NoDescriptors>& none,
                    const int err,
                    const std::string& text) {
  loop.call_at(Clock::now() + milliseconds(10), [&loop, &none, err, text] {
    std::string said(10'000, '\0');
    said.resize(std::max<ssize_t>(0, ::pread(err, said.data(), said.size(), 0)));
    if (said.find(text) == std::string::npos)
      return give_back_once(loop, none, err, text);
    none.reset();
  });
}

constexpr auto kNoRoomYet = "ranks cannot be started again yet: ";

TEST(RunLocalRanks, AReplacementThatFindsNoDescriptorsComesLater) {
  const ScratchFolder folder;
  const Fd err(::open(folder.write("err", "").c_str(), O_RDONLY | O_CLOEXEC));
  GroupResult result;
  int asked = 0;
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    std::optional<NoDescriptors> none;
    Replacing replacing;
    replacing.replace = [&](const RankFailures&) {
      ++asked;
      none.emplace();
      give_back_once(processes.loop(), none, err.get(), kNoRoomYet);
      replacing.go_on({.number = 1, .specs = shells({"", "touch replaced"}, folder)});
      return true;
    };
    replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
    };
    replacing.has_come = [](const std::string&, int) {
      return true;
    };
    const auto specs =
        shells({"until [ -e replaced ]; do sleep 0.01; done", "kill -KILL $$"}, folder);
    result = run_local_ranks(processes, specs, {}, {.replacing = &replacing});
  }
  const auto said = read_file(folder.path() + "/err");
  EXPECT_EQ(asked, 1) << said;
  ASSERT_EQ(result.exits.size(), 2U) << said;
  for (const RankExit& exit : result.exits)
    EXPECT_FALSE(exit.failed());
  EXPECT_EQ(said.find(kNoRoomYet), said.rfind(kNoRoomYet)) << said;
}

// Those that have run before are started once there is room; the first start fails at once.
TEST(RunLocalRanks, RanksThatStartAgainWaitForDescriptors) {
  const ScratchFolder folder;
  const Fd err(::open(folder.write("err", "").c_str(), O_RDONLY | O_CLOEXEC));
  GroupResult result;
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    const auto specs = shells({"true", "true"}, folder);
    processes.post_sentinel();
    std::optional<NoDescriptors> none(std::in_place);
    EXPECT_THROW(run_local_ranks(processes, specs, {}, {}), Shortage);
    give_back_once(processes.loop(), none, err.get(), kNoRoomYet);
    result = run_local_ranks(processes, specs, {}, {.is_again = true});
    none.emplace();
    const auto limit = Clock::now() + milliseconds(1);
    EXPECT_TRUE(
        run_local_ranks(processes, specs, {}, {.until = limit, .is_again = true}).timed_out);
  }
  EXPECT_EQ(result.exits.size(), 2U) << read_file(folder.path() + "/err");
}

size_t num_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

std::vector<RankSpec> unseen(std::vector<RankSpec> specs) {
  for (RankSpec& spec : specs)
    spec.err.console = false;
  return specs;
}

// Each says more than is kept of it, and is killed.
TEST(RunLocalRanks, KeepsNothingOfRanksThatWereReplaced) {
  constexpr size_t kReplaced = 40;
  constexpr size_t kSettled = 5;
  const ScratchFolder folder;
  std::vector<size_t> files;
  std::vector<size_t> bytes;
  std::vector<size_t> children;
  Replacing replacing;
  replacing.replace = [&](const RankFailures&) {
    files.push_back(num_open_files());
    bytes.push_back(::mallinfo2().uordblks);
    children.push_back(own_children().size());
    const bool is_last = files.size() == kReplaced;
    const char* const next =
        is_last ? "touch replaced" : "head -c 250000 /dev/zero >&2; kill -KILL $$";
    replacing.go_on(
        {.number = static_cast<int>(files.size()), .specs = unseen(shells({"", next}, folder))});
    return true;
  };
  replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
  };
  replacing.has_come = [](const std::string&, int) {
    return true;
  };
  ProcessSet processes;
  const auto specs =
      unseen(shells({"until [ -e replaced ]; do sleep 0.01; done", "kill -KILL $$"}, folder));
  const GroupResult result = run_local_ranks(processes, specs, {}, {.replacing = &replacing});
  ASSERT_EQ(files.size(), kReplaced);
  EXPECT_EQ(result.exits.size(), 2U);
  EXPECT_LE(files.back(), files[kSettled]);
  EXPECT_LE(children.back(), children[kSettled]);
  // At any moment the output of up to three ranks is held: of the one that fails, the one before,
  // and the next, each in a buffer of up to 256 KiB. What 25 ranks leave would be 5 MB.
  constexpr size_t kHeld = 3 * size_t{256} * 1024;
  const auto least_of_ten = [&](size_t first) {
    return *std::min_element(&bytes[first], &bytes[first] + 10);
  };
  EXPECT_LE(least_of_ten(kReplaced - 10), least_of_ten(kSettled) + kHeld);
}

// The last process has died when it is decided that all go on: as another rank, which is then what
// is told of its end.
TEST(RunLocalRanks, WaitsForADecisionWhenNobodyRuns) {
  const ScratchFolder folder;
  ProcessSet processes;
  Replacing replacing;
  int asked = 0;
  replacing.replace = [&](const RankFailures& failures) {
    EXPECT_EQ(failures.failed.at(0).rank, asked == 0 ? 0 : 5);
    if (++asked == 2)
      return false;
    processes.loop().call_at(Clock::now() + milliseconds(50), [&] {
      auto specs = shells({"exit 9"}, folder);
      specs[0].rank = 5;
      replacing.go_on({.number = 1, .specs = specs});
    });
    return true;
  };
  replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
  };
  replacing.has_come = [](const std::string&, int) {
    return true;
  };
  const GroupResult result =
      run_local_ranks(processes, shells({"kill -KILL $$"}, folder), {}, {.replacing = &replacing});
  EXPECT_EQ(asked, 2);
  ASSERT_EQ(result.exits.size(), 1u);
  EXPECT_EQ(result.exits[0].rank, 5);
  EXPECT_EQ(result.exits[0].exit_code, 9);
}

TEST(RunLocalRanks, EndsAllWhereARankIsNotReplaced) {
  const ScratchFolder folder;
  Replacing replacing;
  replacing.replace = [](const RankFailures&) {
    return false;
  };
  ProcessSet processes;
  const auto specs = shells({"exec sleep 100", "exit 4"}, folder);
  const GroupResult result = run_local_ranks(processes, specs, {}, {.replacing = &replacing});
  ASSERT_EQ(result.exits.size(), 2u);
  EXPECT_EQ(result.exits[0].exit_code, 4);
  EXPECT_EQ(result.exits[1].sent_signal, SIGTERM);
}

TEST(RunLocalRanks, EndsARankThatDoesNotComeBack) {
  const ScratchFolder folder;
  std::vector<std::string> causes;
  Replacing replacing;
  replacing.patience = milliseconds(10);
  replacing.replace = [&](const RankFailures& failures) {
    causes.push_back(failures.failed.at(0).cause);
    if (causes.size() == 2)
      return false;
    replacing.go_on({.number = 1, .specs = shells({"", "exec sleep 100"}, folder)});
    return true;
  };
  replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
  };
  replacing.has_come = [](const std::string&, int) {
    return false;
  };
  ProcessSet processes;
  const auto specs = shells({"exec sleep 100", "kill -KILL $$"}, folder);
  run_local_ranks(processes, specs, {}, {.replacing = &replacing});
  ASSERT_EQ(causes.size(), 2u);
  EXPECT_EQ(causes[1], "ended by muster (SIGKILL): it had not come back to the others within 10ms");
}

// Its time is long over when it has saved.
TEST(RunLocalRanks, AwaitsARankThatIsSaving) {
  const ScratchFolder folder;
  Replacing replacing;
  replacing.patience = milliseconds(10);
  replacing.replace = [&](const RankFailures&) {
    replacing.go_on({.number = 1, .specs = shells({"", "touch saved"}, folder)});
    return true;
  };
  replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
  };
  int looks = 0;
  replacing.is_saving = [&](const std::string&) {
    return ++looks < 4;
  };
  replacing.has_come = [&](const std::string&, int) {
    if (looks == 3)
      folder.write("go", "");
    return looks == 3;
  };
  GroupResult result;
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    const auto specs = shells({"until [ -e go ]; do :; done", "kill -KILL $$"}, folder);
    result = run_local_ranks(processes, specs, {}, {.replacing = &replacing});
  }
  for (const RankExit& exit : result.exits)
    EXPECT_FALSE(exit.failed());
  EXPECT_EQ(read_file(folder.path() + "/err"),
            "[muster] info: rank 0 is saving a checkpoint; the others wait for it\n");
}

// A save that never ends is no reason to wait for ever. docs/faults.md tells of 5 minutes.
TEST(RunLocalRanks, EndsARankWhoseSaveDoesNotEnd) {
  EXPECT_EQ(Replacing().patience_with_saves, std::chrono::minutes(5));
  const ScratchFolder folder;
  int failures = 0;
  Replacing replacing;
  replacing.patience = milliseconds(10);
  replacing.patience_with_saves = milliseconds(500);
  replacing.replace = [&](const RankFailures&) {
    if (++failures == 2)
      return false;
    replacing.go_on({.number = 1, .specs = shells({"", "exec sleep 100"}, folder)});
    return true;
  };
  replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
  };
  replacing.has_come = [](const std::string&, int) {
    return false;
  };
  replacing.is_saving = [](const std::string&) {
    return true;
  };
  {
    const StderrTo caught(folder.path() + "/err");
    ProcessSet processes;
    const auto specs = shells({"exec sleep 100", "kill -KILL $$"}, folder);
    run_local_ranks(processes, specs, {}, {.replacing = &replacing});
  }
  EXPECT_EQ(failures, 2);
  EXPECT_EQ(read_file(folder.path() + "/err"),
            "[muster] info: rank 0 is saving a checkpoint; the others wait for it\n"
            "[muster] warning: rank 0 has not come back to the others within 10ms; ending it\n");
}

// Rank 1 dies, and rank 0, which had done all its work, ends well before it hears of a new
// generation.
TEST(RunLocalRanks, EndsAllWhereARankHadEndedBeforeItCouldComeBack) {
  for (const milliseconds pause : {milliseconds(0), milliseconds(60'000)}) {
    const ScratchFolder folder;
    Replacing replacing;
    std::string given_up;
    replacing.replace = [&](const RankFailures&) {
      replacing.go_on(
          {.number = 1, .specs = shells({"", "exec sleep 100"}, folder), .pause = pause});
      folder.write("told", "");
      return true;
    };
    replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
    };
    replacing.has_come = [](const std::string&, int) {
      return false;
    };
    replacing.on_given_up = [&](const std::string& why) {
      given_up = why;
    };
    ProcessSet processes;
    const auto specs = shells({"until [ -e told ]; do :; done", "kill -KILL $$"}, folder);
    const GroupResult result = run_local_ranks(processes, specs, {}, {.replacing = &replacing});
    EXPECT_EQ(given_up, "rank 0 had ended already");
    const RankExit* const first = first_failure(result.exits);
    ASSERT_NE(first, nullptr) << "the job has failed";
    EXPECT_EQ(first->rank, 1);
    EXPECT_EQ(first->signal, SIGKILL);
  }
}

// In place of addr2line there is a program that leaves a file.
TEST(RunLocalRanks, LooksUpNoSourceLinesBeforeTheOthersAreTold) {
  const ScratchFolder folder;
  folder.write("addr2line", cat("#!/bin/sh\ntouch ", folder.path(), "/looked\n"));
  std::filesystem::permissions(folder.path() + "/addr2line", std::filesystem::perms::owner_all);
  const ScopedEnv path("PATH", cat(folder.path(), ":", get_env("PATH").value_or("")).c_str());
  Replacing replacing;
  bool looked_before = false;
  std::string stack;
  replacing.replace = [&](const RankFailures& failures) {
    looked_before = std::filesystem::exists(folder.path() + "/looked");
    stack = failures.failed.at(0).stack;
    return false;
  };
  ProcessSet processes;
  const std::string crash =
      R"(printf '{"message":{"message":"SIGSEGV","extraInfo":{"muster":{"signal":"SIGSEGV","said":)"
      R"(["its stack:","  #0 /bin/sh(+0x10) inner"]}}}}' >logs/0.error.json; kill -SEGV $$)";
  const GroupResult result = run_local_ranks(
      processes, shells({crash, "exec sleep 100"}, folder), {}, {.replacing = &replacing});
  EXPECT_FALSE(looked_before);
  EXPECT_EQ(stack, "  #0 /bin/sh(+0x10) inner");
  EXPECT_EQ(result.exits.at(0).stack, "  #0 inner (sh+0x10)");
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/looked"));
}

// Rank 1 dies; then `ask` has the job stop while another process is to follow on it after the
// pause. That may not listen to signals yet: it is started at once, and told when another has ended
// of the stop. `ask` calls what it is given where the decision to go on is made.
using AskToStop = std::function<void(ProcessSet&, std::function<void()> go_on)>;

GroupResult stop_while_coming_together(milliseconds pause,
                                       const AskToStop& ask,
                                       std::optional<Clock::time_point> until) {
  const ScratchFolder folder;
  Replacing replacing;
  ProcessSet processes;
  const std::string wait = "while :; do sleep 0.01; done";
  replacing.replace = [&](const RankFailures&) {
    ask(processes, [&, pause] {
      replacing.go_on(
          {.number = 1,
           .specs = shells({"", cat("trap 'exit 75' TERM; touch listens; ", wait)}, folder),
           .pause = pause});
    });
    return true;
  };
  replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
  };
  replacing.has_come = [](const std::string&, int) {
    return true;
  };
  const auto specs =
      shells({cat("trap 'until [ -e listens ]; do :; done; exit 75' TERM; touch ready; ", wait),
              "until [ -e ready ]; do :; done; kill -KILL $$"},
             folder);
  return run_local_ranks(processes, specs, {}, {.until = until, .replacing = &replacing});
}

TEST(RunLocalRanks, AStopLetsTheRanksComeTogetherFirst) {
  for (const milliseconds pause : {milliseconds(0), milliseconds(60'000)}) {
    const auto ask = [](ProcessSet&, const std::function<void()>& go_on) {
      go_on();
      ::kill(::getpid(), SIGTERM);
    };
    const GroupResult result = stop_while_coming_together(pause, ask, std::nullopt);
    EXPECT_EQ(result.stopped_by, SIGTERM);
    EXPECT_EQ(result.exits.size(), 2U);
    EXPECT_TRUE(have_stopped(result.exits));
  }
}

// As the coordinator of several hosts orders it, which may say only afterwards who follows.
TEST(RunLocalRanks, SoDoesAStopThatIsOrdered) {
  for (const bool is_late : {false, true}) {
    const auto ask = [&](ProcessSet& processes, const std::function<void()>& go_on) {
      const auto stop = [&processes] {
        processes.ask_all_to_stop();
      };
      const auto now = Clock::now();
      processes.loop().call_at(now, is_late ? std::function<void()>(stop) : go_on);
      processes.loop().call_at(now + milliseconds(1), is_late ? go_on : stop);
    };
    const GroupResult result = stop_while_coming_together(milliseconds(60'000), ask, std::nullopt);
    EXPECT_EQ(result.exits.size(), 2U);
    EXPECT_TRUE(have_stopped(result.exits)) << is_late;
  }
}

// The one rank of a host: those that it comes together with are elsewhere.
struct OneOfSeveral {
  explicit OneOfSeveral(std::string follower) : command(std::move(follower)) {
    replacing.others_run_elsewhere = true;
    replacing.replace = [this](const RankFailures&) {
      ::kill(::getpid(), SIGTERM);
      processes.loop().call_at(Clock::now() + milliseconds(50), [this] { answer(); });
      return true;
    };
    replacing.announce = [](const std::string&, const NextGeneration&, const RankSpec&) {
    };
  }

  GroupResult run(milliseconds grace) {
    return run_local_ranks(processes,
                           shells({"kill -KILL $$"}, folder),
                           {},
                           {.shutdown_timeout = grace, .replacing = &replacing});
  }

  ScratchFolder folder;
  std::string command;
  Replacing replacing;
  ProcessSet processes;
  std::function<void()> answer = [this] {
    replacing.go_on(
        {.number = 1, .specs = shells({command}, folder), .pause = milliseconds(9'000)});
  };
};

TEST(RunLocalRanks, AStopWaitsForARankThatIsToFollowAndLetsItEndByItself) {
  OneOfSeveral host("sleep 0.2; exit 75");
  const GroupResult result = host.run(std::chrono::hours(1));
  EXPECT_EQ(result.stopped_by, SIGTERM);
  ASSERT_EQ(result.exits.size(), 1U);
  EXPECT_TRUE(have_stopped(result.exits));
  EXPECT_EQ(result.exits[0].sent_signal, 0);
}

TEST(RunLocalRanks, OneThatDoesNotEndByItselfIsToldBeforeTheGraceIsOver) {
  OneOfSeveral host("trap 'exit 75' TERM; while :; do sleep 0.01; done");
  const GroupResult result = host.run(milliseconds(4'000));
  ASSERT_EQ(result.exits.size(), 1U);
  EXPECT_TRUE(have_stopped(result.exits));
  EXPECT_EQ(result.exits[0].sent_signal, SIGTERM);
}

TEST(RunLocalRanks, AnOrderToEndIsForThemToo) {
  for (const bool is_there : {true, false}) {
    OneOfSeveral host("trap 'exit 75' TERM; touch listens; while :; do sleep 0.01; done");
    const auto go_on = host.answer;
    const auto end_once_it_listens = [&](const auto& again) -> void {
      if (std::filesystem::exists(host.folder.path() + "/listens"))
        return host.processes.end_all();
      host.processes.loop().call_at(Clock::now() + milliseconds(5), [&again] { again(again); });
    };
    host.answer = [&] {
      if (!is_there)
        return host.processes.end_all();
      go_on();
      end_once_it_listens(end_once_it_listens);
    };
    const GroupResult result = host.run(std::chrono::hours(1));
    EXPECT_EQ(result.stopped_by, SIGTERM);
    EXPECT_EQ(have_stopped(result.exits), is_there);
  }
}

TEST(RunLocalRanks, SoDoesTheTimeLimit) {
  const auto until = Clock::now() + milliseconds(3'000);
  const auto pass_time = [&](ProcessSet&, const std::function<void()>& go_on) {
    go_on();
    while (Clock::now() < until)
      ::usleep(1'000);
  };
  const GroupResult result = stop_while_coming_together(milliseconds(60'000), pass_time, until);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exits.size(), 2U);
  EXPECT_TRUE(have_stopped(result.exits));
}

TEST(RunLocalRanks, SaysNothingOfTheKindOfFailuresOrEarlier) {
  EXPECT_THAT(said("false", 3, milliseconds(0)), Not(HasSubstr("on\n")));
  EXPECT_EQ(said("true", 0, milliseconds(60'000)), "");
}

TEST(LocalRanks, AJobThatIsStoppedWhileItStartsStartsNoMoreRanks) {
  const ScratchFolder folder;
  ProcessSet processes;
  const auto specs = shells({"touch first; sleep 100", "touch second; sleep 100"}, folder);
  ::raise(SIGTERM);  // the set's handler keeps it
  const GroupResult result = run_local_ranks(processes, specs, {}, {});
  EXPECT_EQ(result.stopped_by, SIGTERM);
  EXPECT_TRUE(result.exits.empty());
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/first"));
}

}  // namespace
}  // namespace muster
