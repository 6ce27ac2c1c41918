// The real program, with shell scripts as ranks.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
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

std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = split(trim(text), '\n');
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(Run, OneRankPerCpuSlotWithPrefixes) {
  const ScratchFolder folder;
  const Ran ran = muster(
      sh({"--cpu-slots", "3"}, "echo I am $RANK of $WORLD_SIZE; echo err $RANK >&2"), folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(sorted_lines(ran.out),
            (std::vector<std::string>{"[0] I am 0 of 3", "[1] I am 1 of 3", "[2] I am 2 of 3"}));
  EXPECT_THAT(ran.err, HasSubstr("[1] err 1\n"));
  EXPECT_THAT(ran.err, HasSubstr("rank  host")) << "the placement table";
}

// What the Debian package and the wheel may find: a machine that lacks what is loaded at run time.
TEST(Devices, WithoutHwlocCoresAreAsSysTellsOfThem) {
  const ScratchFolder folder;
  folder.write("lib/libhwloc.so.15", "no library");
  const ProgramSettings without{.environment = {{"LD_LIBRARY_PATH", folder.path() + "/lib"}}};
  const Ran ran = muster({"devices", "--json"}, folder, without);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const json host = json::parse(ran.out)["hosts"][0];
  EXPECT_FALSE(host["cores"].empty());
  EXPECT_THAT(host["notes"][0],
              HasSubstr("install hwloc's library (Debian: libhwloc15); until then"));
  EXPECT_THAT(muster({"devices"}, folder, without).out,
              HasSubstr("\nnote: CPU topology: expected libhwloc"));
  const json whole = json::parse(muster({"devices", "--json"}, folder).out)["hosts"][0];
  EXPECT_FALSE(whole.contains("notes")) << "with hwloc there is nothing to note";
  EXPECT_EQ(whole["num_cores"], host["num_cores"]);
}

TEST(Run, OneRankPassesThrough) {
  const ScratchFolder folder;
  const Ran ran = muster(sh({"-q", "-n", "1"}, "printf 'a\\377b\\r\\000c'; printf e >&2"), folder);
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, std::string("a\377b\r\0c", 6));
  EXPECT_EQ(ran.err, "e");
}

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

TEST(Run, RanksRunInTheirFolderWithTheirVariables) {
  const ScratchFolder folder;
  const std::string program =
      folder.write("bin/tell", "#!/bin/sh\npwd; echo $COLOUR-$EMPTY-$PRESENT\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  folder.write("work/file", "");
  ProgramSettings settings;
  settings.environment = {{"PRESENT", "here"}, {"COLOUR", "grey"}};
  const Ran ran = muster({"run",
                          "-q",
                          "-n",
                          "1",
                          "--run-dir",
                          "out",
                          "--workdir",
                          "work",
                          "--env",
                          "COLOUR=a=b c",
                          "--env",
                          "EMPTY=",
                          "--env",
                          "PRESENT",
                          "bin/tell"},
                         folder,
                         settings);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, cat(folder.path(), "/work\na=b c--here\n"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/out/plan.json"));
}

TEST(Run, DifferentProgramsByRank) {
  const ScratchFolder folder;
  const char* const tell =
      "echo $0 $RANK/$WORLD_SIZE $LOCAL_RANK $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE";
  const Ran ran = muster({"run",
                          "-q",
                          "-n",
                          "1",
                          "--role",
                          "ps",
                          "sh",
                          "-c",
                          tell,
                          "server",
                          ":",
                          "-n",
                          "2",
                          "sh",
                          "-c",
                          tell,
                          "worker",
                          ":",
                          "--nproc_per_node=1",
                          "--role",
                          "ps",
                          "sh",
                          "-c",
                          tell,
                          "backup"},
                         folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(sorted_lines(ran.out),
            (std::vector<std::string>{"[0] server 0/4 0 ps 0/2",
                                      "[1] worker 1/4 1 default 0/2",
                                      "[2] worker 2/4 2 default 1/2",
                                      "[3] backup 3/4 3 ps 1/2"}));
}

TEST(Run, FlagsFromAFileAndTheTypedOnesWin) {
  const ScratchFolder folder;
  folder.write("flags.toml",
               "quiet = true\nnproc-per-node = 2\nrole = \"filed\"\n[env]\nCOLOUR = \"red\"\n");
  const Ran ran = muster(
      sh({"--config", "flags.toml", "-n", "1"}, "echo $WORLD_SIZE $ROLE_NAME $COLOUR"), folder);
  EXPECT_EQ(ran.out, "1 filed red\n") << ran.err;
  folder.write("wrong.toml", "nproc = 2\n");
  const Ran wrong = muster(sh({"--config", "wrong.toml"}, "true"), folder);
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err,
              HasSubstr("wrong.toml: expected a flag of muster run, got 'nproc'; did you mean "
                        "'nproc-per-node'? (line 1, column 1)"));
}

TEST(Run, ProgramsFlagsAreTheProgramsOwn) {
  const ScratchFolder folder;
  const Ran ran =
      muster({"run", "-q", "-n", "1", "printf", "%s,", "--help", "-n", "3", "--", "--version", ""},
             folder);
  EXPECT_EQ(ran.out, "--help,-n,3,--,--version,,");
}

TEST(Run, TakesTorchrunsSpellingsAndVariables) {
  const ScratchFolder folder;
  const std::string script = "echo $WORLD_SIZE $ROLE_NAME $TORCHELASTIC_MAX_RESTARTS";
  EXPECT_EQ(
      muster(sh({"-q", "--nproc_per_node=1", "--role=a_b", "--max_restarts", "4"}, script), folder)
          .out,
      "1 a_b 4\n");
  ProgramSettings settings;
  settings.environment = {{"PET_NPROC_PER_NODE", "1"},
                          {"PET_ROLE", "pet"},
                          {"PET_STANDALONE", "1"},
                          {"PET_NO_PYTHON", "0"}};
  EXPECT_EQ(muster(sh({"-q"}, script), folder, settings).out, "1 pet 0\n");
  EXPECT_EQ(muster(sh({"-q", "--role", "flag"}, script), folder, settings).out, "1 flag 0\n");
}

TEST(Run, StandardInputGoesToRankZeroOnly) {
  const ScratchFolder folder;
  ProgramSettings settings;
  settings.input = "line one\nline two\n";
  const Ran ran = muster(sh({"-q", "-n", "2"}, "cat"), folder, settings);
  EXPECT_EQ(ran.out, "[0] line one\n[0] line two\n");
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

TEST(Run, HostsOfAnInventoryAreSimulatedTogether) {
  const ScratchFolder folder;
  const std::string fleet =
      folder.write("fleet.toml",
                   "[[host]]\nname = \"a\"\ngpus = \"1xH100-80GB\"\n[[host]]\nname = \"b\"\ngpus = "
                   "\"2xA100-40GB\"\n");
  const Ran ran = muster(
      {"run",
       "--inventory",
       fleet,
       "sh",
       "-c",
       "echo $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK of "
       "$GROUP_WORLD_SIZE, $MUSTER_SIMULATED $MUSTER_DEVICE"},
      folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("[0@a] 0 of 3, local 0 of 1, host 0 of 2, 1 GPU-"));
  EXPECT_THAT(ran.out, HasSubstr("[2@b] 2 of 3, local 1 of 2, host 1 of 2, 1 GPU-"));
  EXPECT_THAT(ran.err, HasSubstr("simulated"));
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

TEST(Run, SecretIsReadableByEveryRankAndNowhereElse) {
  const ScratchFolder folder;
  const Ran ran =
      muster(sh({"-q", "-n", "2"},
                "wc -c < /proc/self/fd/$MUSTER_SECRET_FD; tr '\\0' ' ' < /proc/$PPID/cmdline; env"),
             folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("[0] 64\n"));
  EXPECT_THAT(ran.out, HasSubstr("[1] 64\n"));
  for (const std::string& line : split(ran.out, '\n')) {
    EXPECT_FALSE(line.find_first_not_of("0123456789abcdef", line.rfind('=') + 1) ==
                     std::string::npos &&
                 line.size() - line.rfind('=') > 64)
        << line;
  }
}

TEST(Run, MoreRanksThanTheSoftLimitOfOpenFilesAllows) {
  const ScratchFolder folder;
  const Ran ran =
      from_shell("ulimit -Sn 64; exec \"$0\" run -q -n 40 sh -c 'ulimit -Sn'", folder).finish();
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto lines = sorted_lines(ran.out);
  EXPECT_EQ(lines.size(), 40U);
  for (const std::string& line : lines)
    EXPECT_TRUE(line.ends_with("] 64")) << line;
}

TEST(Run, SimulatedMachine) {
  const ScratchFolder folder;
  const std::string box =
      folder.write("box.json", R"({"schema":"muster.devices/1","hosts":[{"name":"box","gpus":[
      {"index":0,"uuid":"GPU-1","model":"A"},{"index":1,"uuid":"GPU-2","model":"A"}]}]})");
  ProgramSettings settings;
  settings.environment = {{"CUDA_VISIBLE_DEVICES", "7"}};
  const Ran ran = muster(
      sh({"--inventory", box}, "echo $MUSTER_SIMULATED $MUSTER_DEVICE $CUDA_VISIBLE_DEVICES"),
      folder,
      settings);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(sorted_lines(ran.out), (std::vector<std::string>{"[0] 1 GPU-1 7", "[1] 1 GPU-2 7"}));
  EXPECT_THAT(ran.err, HasSubstr("simulated"));
}

TEST(Plan, TableAndJsonWithoutStartingAnything) {
  const ScratchFolder folder;
  const Ran table = muster({"plan", "-n", "3"}, folder);
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, HasSubstr("rank  host"));
  const Ran as_json = muster({"plan", "-n", "3", "--json"}, folder);
  EXPECT_EQ(json::parse(as_json.out)["ranks"].size(), 3U);
  EXPECT_EQ(muster({"run", "--dry-run", "--json", "-n", "3", "no-such-program"}, folder).out,
            as_json.out);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/runs"));
}

// A pipe gives what it has once, and what is read a second time is empty.
TEST(Plan, FilesOfFlagsMayBePipes) {
  const ScratchFolder folder;
  const std::string fleet =
      folder.write("fleet.toml",
                   "[[host]]\nname = \"a\"\ngpus = \"1xH100-80GB\"\n[[host]]\nname = \"b\"\ngpus = "
                   "\"1xH100-80GB\"\n");
  folder.write("switches", "b s1\na s2\n");
  folder.write("hosts", "a slots=1\nb slots=1\n");
  const std::string muster_plan =
      cat(ProgramSettings().program, " plan --inventory ", fleet, " --hosts a:1,b:1 --topology ");
  const auto shell = [&](const std::string& command) {
    return muster({"-c", command}, folder, {.program = "sh"});
  };
  const Ran of_file = shell(muster_plan + "switches");
  EXPECT_THAT(of_file.out, HasSubstr("below s1"));
  const Ran of_pipe = shell(cat("cat switches | ", muster_plan, "/dev/stdin"));
  EXPECT_EQ(of_pipe.code, 0) << of_pipe.err;
  EXPECT_EQ(of_pipe.out, of_file.out);
  const Ran hosts = shell(cat("cat hosts | ",
                              ProgramSettings().program,
                              " plan --hostfile /dev/stdin --inventory ",
                              fleet));
  EXPECT_EQ(hosts.code, 0) << hosts.err;
}

TEST(Plan, VariablesOfProgramsThatStartThemselvesAreNamed) {
  const ScratchFolder folder;
  const ProgramSettings told = {.environment = {{"MUSTER_NPROC", "3"}, {"MUSTER_GPUS", "1"}}};
  const std::string both = "MUSTER_NPROC=3 (--nproc-per-node), MUSTER_GPUS=1 (--gpus)";
  EXPECT_THAT(muster({"plan"}, folder, told).err, HasSubstr(both));
  EXPECT_THAT(muster({"run", "-q", "true"}, folder, told).err, HasSubstr(both));
  EXPECT_THAT(muster({"plan", "-n", "1"}, folder, told).err,
              AllOf(HasSubstr("MUSTER_GPUS=1"), Not(HasSubstr("MUSTER_NPROC"))))
      << "the flag wins";
  ProgramSettings of_task = told;
  of_task.environment["MUSTER_TASK"] = "a";
  EXPECT_EQ(muster({"plan"}, folder, of_task).err, "") << "its runner has set them";
}

TEST(Program, VersionHelpAndSecret) {
  const ScratchFolder folder;
  EXPECT_THAT(muster({"--version"}, folder).out, HasSubstr("muster 0."));
  EXPECT_THAT(muster({"--help"}, folder).out, HasSubstr("devices"));
  const Ran help = muster({"run", "--help"}, folder);
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("Usage: muster run [FLAGS] PROGRAM [ARGS...]"));
  const Ran secret = muster({"secret"}, folder);
  EXPECT_EQ(secret.out.size(), 65U);
  EXPECT_NE(secret.out, muster({"secret"}, folder).out);
  EXPECT_THAT(muster({"run", "--map", "", "x"}, folder).err,
              HasSubstr("--map: expected GPU indices"));
  EXPECT_THAT(muster({"frobnicate"}, folder).err, HasSubstr("got 'frobnicate'"));
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

TEST(Run, OutputFlagsForRanksThatAreNotThereAreRefused) {
  const ScratchFolder folder;
  for (const std::vector<std::string>& flag :
       {std::vector<std::string>{"--local-ranks-filter", "0,5"},
        {"--redirects", "0:1,5:3"},
        {"--tee", "5:3"}}) {
    std::vector<std::string> flags = {"-q", "-n", "2"};
    flags.insert(flags.end(), flag.begin(), flag.end());
    const Ran ran = muster(sh(flags, "echo started"), folder);
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, HasSubstr(cat(flag[0], ": expected local ranks from 0 to 1, got 5")));
  }
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
