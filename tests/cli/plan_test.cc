// What the program tells without starting a rank: plans, devices, versions and help.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster_program.h"

namespace muster {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

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

TEST(Plan, AHostWithoutGpusIsLeftOutAndTold) {
  const ScratchFolder folder;
  folder.write("fleet.toml",
               "[[host]]\nname = \"login\"\ncores = 8\n"
               "[[host]]\nname = \"a\"\ngpus = \"4xH100-80GB\"\nnvlink = \"all\"\n");
  const std::vector<std::vector<std::string>> flags = {{"--policy", "topology"},
                                                       {"--gpus", "model=H100"},
                                                       {"--rank-memory", "40GiB"},
                                                       {"--gpus-per-rank", "2"}};
  for (std::vector<std::string> words : flags) {
    words.insert(words.begin(), {"plan", "--inventory", "fleet.toml"});
    const Ran ran = muster(words, folder);
    EXPECT_EQ(ran.code, 0) << words.back() << ran.err;
    EXPECT_THAT(ran.out + ran.err, HasSubstr("host login: no GPU (the fleet file gives it none)"));
  }
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

TEST(Plan, APictureTakesThePlaceOfNoFileThatIsRead) {
  const ScratchFolder folder;
  folder.write("box.json", muster({"devices", "--json"}, folder).out);
  folder.write("map.txt", "0\n");
  folder.write("flags.toml", "nproc-per-node = 1\n");
  folder.write("plan.json", muster({"plan", "-n", "1", "--json"}, folder).out);
  const auto refused = [&](std::vector<std::string> words, const std::string& file) {
    words.insert(words.end(), {"--svg", "./" + file});
    const std::string before = read_file(cat(folder.path(), "/", file));
    const Ran ran = muster(words, folder);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_THAT(ran.err, HasSubstr("--svg: expected a file that can be written, got './"));
    EXPECT_THAT(ran.err, HasSubstr(" read from it; give another"));
    EXPECT_EQ(read_file(cat(folder.path(), "/", file)), before);
  };
  refused({"plan", "--inventory", "box.json"}, "box.json");
  refused({"plan", "-n", "1", "--map", "@map.txt"}, "map.txt");
  refused({"plan", "--config", "flags.toml"}, "flags.toml");
  refused({"devices", "--inventory", "box.json"}, "box.json");
  refused({"devices", "--plan", "plan.json"}, "plan.json");
}

}  // namespace
}  // namespace muster
