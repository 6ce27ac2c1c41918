// How a job of `muster run` ends: exit codes, the failure card, restarts, time limits, and Ctrl-Z.
// The real program, with shell scripts as ranks.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster_program.h"
#include "tasks_program.h"

namespace muster {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(Run, ATimeLimitEndsTheJobAsSigtermWould) {
  const ScratchFolder folder;
  const std::string script =
      "trap 'echo saved $RANK; exit 0' TERM; echo up $RANK; while :; do sleep 0.02; done";
  const auto are_both = [](const std::string& what) {
    return testing::AllOf(HasSubstr(what + " 0"), HasSubstr(what + " 1"));
  };
  // A machine that was busy with something else when the ranks began gets a longer limit.
  for (const std::string limit : {"1", "5", "25"}) {
    const Ran ran =
        muster(sh({"-q", "-n", "2", "--timeout", limit, "--run-dir", "out"}, script), folder);
    EXPECT_EQ(ran.code, 124);
    EXPECT_THAT(ran.err, HasSubstr(cat("the time limit of ", limit, ".0s (--timeout) is over")));
    const bool were_up = testing::Value(ran.out, are_both("up"));
    if (!were_up && limit != "25")
      continue;
    EXPECT_THAT(ran.out, testing::AllOf(are_both("up"), are_both("saved")));
    break;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/failure.json"));
}

TEST(Run, TheEndOfTheSlurmJobIsATimeLimit) {
  const ScratchFolder folder;
  const auto words = sh({"-q", "-n", "1", "--timeout", "slurm", "--shutdown-timeout", "1s"},
                        "trap 'echo saved; exit 75' TERM; while :; do sleep 0.02; done");
  ProgramSettings settings;
  settings.environment = {{"SLURM_JOB_END_TIME", cat(std::time(nullptr) + 1 + 30 + 5)}};
  const Ran ran = muster(words, folder, settings);
  EXPECT_EQ(ran.code, 75) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("saved"));
  settings.environment = {{"SLURM_JOB_END_TIME", cat(std::time(nullptr) + 20)}};
  for (const Ran& refused : {muster(words, folder, settings), muster(words, folder)}) {
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("SLURM_JOB_END_TIME"));
    EXPECT_EQ(refused.out, "");
  }
}

TEST(Run, ATimeLimitThatIsNotReachedIsNothing) {
  const ScratchFolder folder;
  EXPECT_EQ(muster(sh({"-q", "--timeout", "1h"}, "exit 3"), folder).code, 3);
  EXPECT_EQ(muster(sh({"-q", "--timeout", "0"}, "true"), folder).code, 2);
}

TEST(Run, ATimeLimitCountsRestartsToo) {
  const ScratchFolder folder;
  const Ran ran = muster(sh({"-q", "-n", "1", "--timeout", "500ms", "--max-restarts", "1000000"},
                            "sleep 0.01; exit 1"),
                         folder);
  EXPECT_EQ(ran.code, 124) << ran.err;
}

TEST(Run, ExitCodeOfTheFirstFailure) {
  const ScratchFolder folder;
  const Ran ran = muster(sh({"-n", "2", "--run-dir", "out"},
                            "[ $RANK = 0 ] && exec sleep 1000; echo oh no >&2; exit 7"),
                         folder);
  EXPECT_EQ(ran.code, 7);
  EXPECT_THAT(ran.err, HasSubstr("rank 1 failed first: exit code 7"));
  EXPECT_THAT(ran.err, HasSubstr("[1] oh no\n[muster] rank 1"));
  EXPECT_EQ(ran.err.find("oh no"), ran.err.rfind("oh no")) << "once";
  EXPECT_THAT(ran.err, HasSubstr("rank 0: ended by muster (SIGTERM)"));
  const json failure = failure_of(folder);
  EXPECT_EQ(failure["schema"], "muster.failure/1");
  EXPECT_EQ(failure["first"]["rank"], 1);
  EXPECT_EQ(failure["exit_code"], 7);
}

TEST(Run, SignalDeathsAre128Plus) {
  const ScratchFolder folder;
  EXPECT_EQ(muster(sh({"-n", "2"}, "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 1000"), folder).code,
            128 + SIGSEGV);
  const Ran killed =
      muster(sh({"-n", "2"}, "[ $RANK = 0 ] && kill -KILL $$; exec sleep 1000"), folder);
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_THAT(killed.err, HasSubstr("rank 0 failed first: killed by SIGKILL"));
}

TEST(Run, ARankMayEndEarly) {
  const ScratchFolder folder;
  const Ran ran =
      muster(sh({"-q", "-n", "2"}, "[ $RANK = 0 ] && exec true; echo still here"), folder);
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "[1] still here\n");
}

TEST(Run, RestartsTheWholeGroup) {
  const ScratchFolder folder;
  const std::string script =
      "echo $RANK attempt $TORCHELASTIC_RESTART_COUNT/$MUSTER_ATTEMPT port $MASTER_PORT; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 1 ] && exit 9; exec sleep 1000";
  const Ran ran =
      muster(sh({"-q", "-n", "2", "--max-restarts", "3", "--run-dir", "out"}, script), folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("[0] 0 attempt 2/2"));
  EXPECT_THAT(ran.out, Not(HasSubstr("attempt 3")));
  EXPECT_THAT(ran.err, HasSubstr("restart 2 of 3"));
  std::set<std::string> ports;
  for (const std::string& line : split(trim(ran.out), '\n'))
    ports.insert(line.substr(line.rfind(' ')));
  EXPECT_EQ(ports.size(), 1U) << "the port stays the same";
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/failure.json"));
}

TEST(Run, RestartsEnd) {
  const ScratchFolder folder;
  const Ran ran = muster(sh({"-q", "-n", "1", "--max-restarts", "2", "--run-dir", "out"},
                            "echo $TORCHELASTIC_RESTART_COUNT; exit 9"),
                         folder);
  EXPECT_EQ(ran.code, 9);
  EXPECT_EQ(ran.out, "0\n1\n2\n");
  EXPECT_EQ(failure_of(folder)["attempt"], 2);
}

TEST(Run, AProgressBarDoesNotFillTheCard) {
  const ScratchFolder folder;
  const std::string bar =
      "for i in $(seq 3000); do printf 'step %d of 3000\\r' $i >&2; done; echo broken >&2; exit 3";
  for (const char* const where : {"0", "3"}) {
    const Ran ran = muster(sh({"-q", "-n", "1", "-r", where}, bar), folder);
    EXPECT_EQ(ran.code, 3);
    if (where[0] == '3') {
      EXPECT_LT(ran.err.size(), 2000U);
      EXPECT_THAT(ran.err, HasSubstr("broken"));
    }
  }
}

TEST(Run, AHostDiscoveryThatDoesNotEndIsGivenUp) {
  const ScratchFolder folder;
  const Ran ran = muster(sh({"--host-discovery",
                             "echo a; sleep 1000",
                             "--nnodes",
                             "1:2",
                             "--rdzv-conf",
                             "join_timeout=1,last_call_timeout=0"},
                            "true"),
                         folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              HasSubstr("--host-discovery: expected 'echo a; sleep 1000' to end within 1.0s"));
}

// "T" for one that is stopped.
std::string process_state(const std::string& pid) {
  const std::string text = read_file(cat("/proc/", pid, "/stat"));
  return text.substr(text.rfind(')') + 2, 1);
}

bool all_reach(const std::vector<std::string>& pids, bool stopped) {
  const Deadline deadline(std::chrono::seconds(30));
  const auto is_so = [&](const std::string& pid) {
    return (process_state(pid) == "T") == stopped;
  };
  while (!std::all_of(pids.begin(), pids.end(), is_so)) {
    if (deadline.passed())
      return false;
    ::usleep(2'000);
  }
  return true;
}

TEST(Run, CtrlZStopsAJobOfOneHostUntilItGoesOn) {
  const ScratchFolder folder;
  Program program(sh({"-q", "-n", "2"}, "echo $$ >new$RANK; mv new$RANK pid$RANK; exec sleep 1000"),
                  folder);
  ASSERT_TRUE(appears(folder.path() + "/pid0") && appears(folder.path() + "/pid1"));
  std::vector<std::string> pids = {cat(program.pid())};
  for (const char* const rank : {"0", "1"})
    pids.emplace_back(trim(read_file(cat(folder.path(), "/pid", rank))));
  ::kill(program.pid(), SIGTSTP);
  EXPECT_TRUE(all_reach(pids, true));
  ::kill(program.pid(), SIGCONT);
  EXPECT_TRUE(all_reach(pids, false));
  ::kill(program.pid(), SIGTERM);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 128 + SIGTERM) << ran.err;
  EXPECT_THAT(ran.err, Not(HasSubstr("restart")));
}

}  // namespace
}  // namespace muster
