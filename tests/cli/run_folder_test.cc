// What `muster run` leaves in a run's folder: the plan, logs, and no traces of a job without any.
// Who may write there. The real program, with shell scripts as ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster_program.h"
#include "tasks_program.h"

namespace muster {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The folders of the runs there are, and what `latest` points to.
std::vector<std::string> runs_in(const ScratchFolder& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/runs")) {
    const std::string name = entry.path().filename();
    names.push_back(entry.is_symlink() ? name + " -> " + fs::read_symlink(entry.path()).string()
                                       : name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Run, LeavesAFolderOnlyWhereThereIsSomethingInIt) {
  const ScratchFolder folder;
  const std::string script = "readlink runs/latest; test -e runs/latest/plan.json";
  const Ran ran = muster(sh({"-q", "-n", "1", "--rdzv-id", "a"}, script), folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "a\n");
  EXPECT_EQ(muster({"run", "-q", "-n", "1", "./is-not-there"}, folder).code, 127);
  folder.write("no-program", "x");
  std::filesystem::permissions(folder.path() + "/no-program", std::filesystem::perms::owner_all);
  EXPECT_EQ(muster({"run", "-q", "-n", "1", "./no-program"}, folder).code, 126);
  EXPECT_THAT(runs_in(folder), testing::IsEmpty());

  EXPECT_EQ(
      muster(sh({"-q", "-n", "1", "--rdzv-id", "b"}, "echo 1 > runs/latest/result"), folder).code,
      0);
  EXPECT_EQ(muster(sh({"-q", "-n", "1", "--rdzv-id", "c"}, "exit 3"), folder).code, 3);
  EXPECT_THAT(runs_in(folder), testing::ElementsAre("b", "c", "latest -> c"));
  const Ran again =
      muster(sh({"-q", "-n", "1", "--run-dir", "runs/latest"}, "echo $MUSTER_RUN_DIR"), folder);
  EXPECT_THAT(again.out, testing::EndsWith("/runs/c\n"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/runs/c/plan.json"))
      << "it was there before";
}

// A user's folder may have such names too.
TEST(Run, LeavesAloneWhatNoRunHasLeftThere) {
  const std::vector<std::string> others = {"plan.json",
                                           "run.json",
                                           "failure.json",
                                           "trace.json",
                                           "logs/3/epoch.txt",
                                           "activity/0/1",
                                           "trace/notes",
                                           "plans/part-a.json",
                                           ".lock"};
  for (const std::string& other : others) {
    const ScratchFolder folder;
    folder.write(other, "the user's own");
    const Ran ran = muster(sh({"-n", "1", "--run-dir", "."}, "echo started"), folder);
    EXPECT_EQ(ran.code, other == ".lock" ? 1 : 2) << other;
    EXPECT_EQ(ran.out, "") << other;
    const std::string named = other.substr(0, other.find("/", other.find('/') + 1));
    EXPECT_THAT(ran.err, testing::AllOf(HasSubstr("/" + named + "'"), HasSubstr("another folder")))
        << other;
    EXPECT_EQ(read_file(folder.path() + "/" + other), "the user's own");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
        << other << ": nothing was begun";
  }
}

TEST(Run, LeavesAloneAFolderForLogsThatNoRunHasLeft) {
  const ScratchFolder folder;
  folder.write("data/job/7/sample", "the user's own");
  const Ran ran = muster(sh({"-n", "1", "--rdzv-id", "job", "--log-dir", "data"}, "true"), folder);
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, testing::AllOf(HasSubstr("--log-dir: "), HasSubstr("/data/job/7'")));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/data/job/7/sample"));
}

TEST(Run, AFolderForLogsThatCannotBeNamesItsFlag) {
  const ScratchFolder folder;
  folder.write("file", "");
  const Ran ran = muster(sh({"-n", "1", "--log-dir", "file/logs"}, "true"), folder);
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err,
              testing::AllOf(HasSubstr("--log-dir: expected a folder that can be made, got '"),
                             HasSubstr("Not a directory; give another\n")));
}

// As the launcher of agents leaves it where none of them is.
TEST(Run, TakesTheReportOfAFailureForItsOwn) {
  const ScratchFolder folder;
  ASSERT_EQ(muster(sh({"-q", "-n", "1", "--run-dir", "out"}, "exit 3"), folder).code, 3);
  std::filesystem::create_directory(folder.path() + "/job");
  std::filesystem::rename(folder.path() + "/out/failure.json", folder.path() + "/job/failure.json");
  const Ran ran = muster(sh({"-q", "-n", "1", "--run-dir", "job"}, "true"), folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/job/failure.json"));
}

// It is the plan that is executed.
TEST(Run, TakesThePlanFromItsOwnFolder) {
  const ScratchFolder folder;
  ASSERT_EQ(muster(sh({"-q", "-n", "1", "--run-dir", "out"}, "true"), folder).code, 0);
  std::filesystem::create_directory(folder.path() + "/job");
  std::filesystem::copy(folder.path() + "/out/plan.json", folder.path() + "/job/plan.json");
  const Ran ran =
      muster(sh({"-q", "--plan", "job/plan.json", "--run-dir", "job"}, "echo $RANK"), folder);
  EXPECT_EQ(ran.out, "0\n") << ran.err;
}

TEST(Run, WritesThePlanAndLogs) {
  const ScratchFolder folder;
  const Ran ran =
      muster(sh({"-q", "-n", "2", "--run-dir", "out", "--tee", "0:3", "--redirects", "1:1"},
                "echo out $RANK; echo err $RANK >&2"),
             folder);
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(json::parse(read_file(folder.path() + "/out/plan.json"))["schema"], "muster.plan/1");
  EXPECT_EQ(read_file(folder.path() + "/out/logs/0/0.out"), "out 0\n");
  EXPECT_EQ(read_file(folder.path() + "/out/logs/0/0.err"), "err 0\n");
  EXPECT_EQ(read_file(folder.path() + "/out/logs/0/1.out"), "out 1\n");
  EXPECT_EQ(ran.out, "[0] out 0\n") << "rank 1's is redirected";
  EXPECT_THAT(ran.err, HasSubstr("[1] err 1\n"));
}

TEST(Run, LastLinesOfARedirectedErrorStream) {
  const ScratchFolder folder;
  const Ran ran =
      muster(sh({"-n", "1", "--redirects", "3"}, "echo the reason >&2; exit 4"), folder);
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("    | the reason\n"));
  EXPECT_THAT(ran.err, HasSubstr("/logs/0/0.err"));
}

TEST(Run, LeavesNoEmptyFolders) {
  const ScratchFolder folder;
  muster(sh({"-n", "1", "--run-dir", "out"}, "true"), folder);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/logs"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/failure.json"));
}

TEST(Run, StartedAgainInAFolderItKeepsTheLogsBefore) {
  const ScratchFolder folder;
  const auto start = [&](const char* word, int ranks) {
    return muster(sh({"-q", "-n", cat(ranks), "--run-dir", "out", "--tee", "3"},
                     cat("echo ", word, " $RANK")),
                  folder)
        .code;
  };
  ASSERT_EQ(start("first", 2), 0);
  ASSERT_EQ(start("second", 1), 0);
  ASSERT_EQ(start("third", 1), 0);
  const auto log = [&](const std::string& name) {
    return read_file(cat(folder.path(), "/out/logs/", name));
  };
  EXPECT_EQ(log("0/0.out"), "third 0\n");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/logs/0/1.out"))
      << "it is of another start";
  EXPECT_EQ(log("earlier-1/0/0.out"), "first 0\n");
  EXPECT_EQ(log("earlier-1/0/1.out"), "first 1\n");
  EXPECT_EQ(log("earlier-2/0/0.out"), "second 0\n");
}

TEST(Run, TwoJobsAtOnceDoNotWriteIntoOneFolder) {
  const ScratchFolder folder;
  const std::string hold = "echo here; while [ ! -e go ]; do sleep 0.01; done";
  for (const std::vector<std::string>& where :
       {std::vector<std::string>{"--run-dir", "out"}, {"--rdzv-id", "job"}}) {
    std::filesystem::remove(folder.path() + "/go");
    std::vector<std::string> flags = {"-q", "-n", "1"};
    flags.insert(flags.end(), where.begin(), where.end());
    Program first(sh(flags, hold), folder);
    first.read_until("here");
    const Ran second = muster(sh(flags, "echo there"), folder);
    EXPECT_EQ(second.code, 1);
    EXPECT_EQ(second.out, "");
    EXPECT_THAT(second.err,
                testing::AllOf(HasSubstr("expected no job that still writes there"),
                               HasSubstr(cat("process ", first.pid(), " on "))));
    folder.write("go", "");
    EXPECT_EQ(first.finish().code, 0);
    EXPECT_EQ(muster(sh(flags, "true"), folder).code, 0);
  }
}

// Agents that were killed leave parts of plans in a folder of that name.
TEST(Run, AFolderOfTheProgramsOwnThatIsCalledPlansStays) {
  const ScratchFolder folder;
  const auto run = [&] {
    return muster(sh({"-q", "-n", "1", "--run-dir", "out"}, "true"), folder).code;
  };
  ASSERT_EQ(run(), 0);
  folder.write("out/plans/mine/tour.txt", "x");
  folder.write("out/plans/part-of-a-killed-agent.json", "x");
  EXPECT_EQ(run(), 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/out/plans/mine/tour.txt"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/plans/part-of-a-killed-agent.json"));
}

TEST(Run, LogsElsewhereAreLockedAndKeptToo) {
  const ScratchFolder folder;
  const auto flags = [](const char* run_dir) {
    return std::vector<std::string>{
        "-q", "-n", "1", "--run-dir", run_dir, "--rdzv-id", "job", "--log-dir", "logs", "-r", "3"};
  };
  Program first(
      sh(flags("a/out"), "echo first; echo >here; while [ ! -e go ]; do sleep 0.01; done"), folder);
  ASSERT_TRUE(appears(folder.path() + "/here"));
  EXPECT_THAT(muster(sh(flags("b/out"), "true"), folder).err, HasSubstr("logs/job'"));
  folder.write("go", "");
  EXPECT_EQ(first.finish().code, 0);
  EXPECT_EQ(muster(sh(flags("b/out"), "echo second"), folder).code, 0);
  EXPECT_EQ(read_file(folder.path() + "/logs/job/0/0.out"), "second\n");
  EXPECT_EQ(read_file(folder.path() + "/logs/job/earlier-1/0/0.out"), "first\n");
}

TEST(Run, HostsOfOneJobShareItsFolderAndNoOtherJobComesIn) {
  const ScratchFolder folder;
  const auto flags = [](const char* tee) {
    return std::vector<std::string>{
        "-q", "--hosts", "localhost:1,127.0.0.1:1", "--run-dir", "out", "--tee", tee};
  };
  ASSERT_EQ(muster(sh(flags("3"), "echo first $RANK"), folder).code, 0);
  Program second(
      sh(flags("3"), "echo second $RANK; echo >here$RANK; while [ ! -e go ]; do sleep 0.01; done"),
      folder);
  ASSERT_TRUE(appears(folder.path() + "/here0") && appears(folder.path() + "/here1"));
  const Ran other = muster(sh(flags("0"), "echo other"), folder);
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(other.err, HasSubstr("expected no job that still writes there"));
  folder.write("go", "");
  EXPECT_EQ(second.finish().code, 0);
  for (const char* const rank : {"0", "1"}) {
    const std::string logs = folder.path() + "/out/logs/";
    EXPECT_EQ(read_file(cat(logs, "0/", rank, ".out")), cat("second ", rank, "\n"));
    EXPECT_EQ(read_file(cat(logs, "earlier-1/0/", rank, ".out")), cat("first ", rank, "\n"));
  }
}

TEST(Run, APageTakesThePlaceOfNoFileOfTheRun) {
  const ScratchFolder folder;
  ASSERT_EQ(
      muster(sh({"-q", "-n", "1", "--run-dir", "out", "--redirects", "3"}, "echo hi"), folder).code,
      0);
  for (const std::string file : {"run.json", "plan.json", "logs/0/0.out"}) {
    const std::string before = read_file(cat(folder.path(), "/out/", file));
    const Ran ran = muster({"report", "out", "--out", "out/" + file}, folder);
    EXPECT_EQ(ran.code, 2) << file;
    EXPECT_THAT(ran.err, HasSubstr("--out: expected a file that can be written, got 'out/"));
    EXPECT_EQ(read_file(cat(folder.path(), "/out/", file)), before);
  }
  EXPECT_EQ(muster({"report", "out", "--out", "out/page.html"}, folder).code, 0);
}

}  // namespace
}  // namespace muster
