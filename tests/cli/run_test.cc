// What ranks get from `muster run`: programs, flags, variables, standard input, devices. The real
// program, with shell scripts as ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "muster/base/strings.h"
#include "muster_program.h"

namespace muster {
namespace {

using testing::HasSubstr;

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

TEST(Run, OneRankPassesThrough) {
  const ScratchFolder folder;
  const Ran ran = muster(sh({"-q", "-n", "1"}, "printf 'a\\377b\\r\\000c'; printf e >&2"), folder);
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, std::string("a\377b\r\0c", 6));
  EXPECT_EQ(ran.err, "e");
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

TEST(Run, ASimulatedMachineIsNeverQuiet) {
  const ScratchFolder folder;
  folder.write("box.toml", "[[host]]\nname = \"box\"\ngpus = \"1xA100-40GB\"\n");
  const Ran plan = muster({"plan", "--inventory", "box.toml", "--json"}, folder);
  folder.write("plan.json", plan.out);
  for (const char* const flag : {"--inventory", "--plan"}) {
    const std::string file = flag == std::string("--plan") ? "plan.json" : "box.toml";
    const Ran ran = muster({"run", "-q", flag, file, "true"}, folder);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err,
              "[muster] warning: the machine of the plan is simulated: its ranks run on this one's "
              "CPU\n");
  }
  folder.write("s.toml", "[[task]]\nname = \"a\"\nargv = [\"true\"]\n");
  const Ran tasks = muster({"tasks", "-q", "--inventory", "box.toml", "s.toml"}, folder);
  EXPECT_THAT(tasks.err, HasSubstr("simulated: tasks run on this one's CPU"));
}

TEST(Run, ADiskWithoutRoomIsToldByTheCard) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path() + "/small");
  const auto on_small_disk = [&](const std::string& command) {
    return from_shell(cat("unshare --mount sh -c 'mount -t tmpfs -o size=64k tmpfs small && exec ",
                          command,
                          "' \"$0\"; echo $?"),
                      folder)
        .finish();
  };
  const Ran probe = on_small_disk("true");
  if (probe.out != "0\n")
    GTEST_SKIP() << "no file system of our own here: " << probe.err;
  const Ran full =
      on_small_disk("\"$0\" run -n 1 --run-dir small/run -r 3 head -c 200000 /dev/zero");
  EXPECT_THAT(full.err, HasSubstr("disk      it is full now where the run's folder is"));
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

}  // namespace
}  // namespace muster
