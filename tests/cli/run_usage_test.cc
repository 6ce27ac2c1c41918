// How the real program tells wrong usage of `muster run`, and what else keeps ranks from being
// started.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster_program.h"

namespace muster {
namespace {

using testing::HasSubstr;

TEST(Run, WordsThatAreNoNumbersAndNamesThatNobodyReads) {
  const ScratchFolder folder;
  const Ran ran = muster({"run", "--master-port", "22x", "true"}, folder);
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--master-port: expected PORT, a number, got '22x'"));
  const Ran dry = muster({"run",
                          "--dry-run",
                          "--nnodes",
                          "2",
                          "--rdzv-endpoint",
                          "127.0.0.1",
                          "--rdzv-conf",
                          "join_timeot=3,is_host=1",
                          "true"},
                         folder);
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.err,
              AllOf(HasSubstr("'join_timeot' is not a known name"), Not(HasSubstr("'is_host'"))));
}

// A number that is too large is no other kind of value, and -1 is no port.
TEST(Run, NumbersBeyondTheirLimits) {
  const ScratchFolder folder;
  const auto error_of = [&](const std::string& flag, const std::string& value) {
    const Ran ran = muster({"run", flag, value, "true"}, folder);
    EXPECT_EQ(ran.code, 2) << flag;
    return ran.err;
  };
  EXPECT_THAT(error_of("-n", "1000001"), HasSubstr("expected a number from 1 to 1000000, auto"));
  EXPECT_THAT(error_of("--nnodes", "100001"), HasSubstr("with 1 <= MIN <= MAX <= 100000"));
  EXPECT_THAT(error_of("--master-port", "-1"), HasSubstr("a port from 1 to 65535, got '-1'"));
}

// Names of files may come from strangers, and values from anywhere.
TEST(Run, WhatDisturbsATerminalIsNotShown) {
  const ScratchFolder folder;
  const std::string name = "a\x1b[2Jb\n\rc";
  folder.write("file", "");
  folder.write("empty" + name, "");
  folder.write("wrong" + name, "a b c\n");
  const std::vector<std::vector<std::string>> bad = {
      {"run", "./" + name},
      {"run", "--config", name, "true"},
      {"run", "--plan", name, "true"},
      {"run", "--map", name, "true"},
      {"run", "--nnodes", name, "true"},
      {"run", "--workdir", name, "true"},
      {"run", "--secret-file", name, "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "true"},
      {"run", "--run-dir", "file/" + name, "true"},
      {"run", "-q", "--log-dir", "file/" + name, "true"},
      {"run", "--hostfile", name, "true"},
      {"run", "--hostfile", "empty" + name, "true"},
      {"run", "--hostfile", "wrong" + name, "true"},
      {"run", "--hosts", name, "true"},
      {"run", "--plan", "wrong" + name, "true"},
      {"run", "--scores", "wrong" + name, "true"},
      {"run", "--map-command", "false " + name, "-n", "gpu", "true"},
      {"run", "--timeout", name, "true"},
      {"run", "--policy", name, "true"},
      {"run", "--mesh", name + "=2", "true"},
      {"run", "--mesh", "a=1,a" + name, "true"},
      {"run", "--tee", name, "true"},
      {"run", "--rank-memory", name, "true"},
      {"run", "--master-addr", name, "--master-port", "29500", "true"},
      {"run", "./" + name + ".py"},
      {"run", "--hosts", "a", "--secret-file", "wrong" + name, "true"},
      {"plan", "--inventory", "wrong" + name},
      {"plan", "--model", name},
      {"devices", "--watch", "--interval", name},
      {"tasks", "--run-dir", "file/" + name, "--", "true"},
      {"plan", "--inventory", name},
      {"checkpoint", "ls", name},
      {name},
  };
  for (const auto& args : bad) {
    const Ran ran = muster(args, folder);
    EXPECT_NE(ran.code, 0) << join(args, " ");
    EXPECT_THAT(ran.err, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\r")))) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
}

TEST(Run, HelpOfACommandIsWhatItsFlagPrints) {
  const ScratchFolder folder;
  const Ran help = muster({"help", "plan"}, folder);
  EXPECT_EQ(help.code, 0) << help.err;
  EXPECT_THAT(help.out, HasSubstr("Usage: muster plan"));
  EXPECT_EQ(help.out, muster({"plan", "--help"}, folder).out);
  EXPECT_EQ(muster({"help"}, folder).out, muster({"--help"}, folder).out);
  const Ran nothing = muster({}, folder);
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("expected a command (run, plan, "));
}

TEST(Run, EveryProgramSaysHowManyRanksItHas) {
  const ScratchFolder folder;
  const auto refused = [&](std::vector<std::string> args, const std::string& why) {
    args.insert(args.begin(), {"run", "-q"});
    const Ran ran = muster(args, folder);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(why));
  };
  refused({"true", ":", "-n", "2", "true"}, "expected a number of ranks for each program");
  refused({"-n", "1", "true", ":", "true"}, "expected a number of ranks for each program");
  refused({"-n", "1", "true", ":"}, "got no program");
  refused({"-n", "1", "true", ":", "-n", "1", "--gpus", "0", "true"}, "--gpus");
  EXPECT_EQ(
      muster({"run", "-q", "-n", "1", "true", ":", "-n", "1", "no-such-program"}, folder).code,
      127);
}

TEST(Run, WrongFoldersAndVariablesAreNamed) {
  const ScratchFolder folder;
  const auto refused =
      [&](const std::string& flag, const std::string& value, const std::string& why) {
        const Ran ran = muster(sh({"-q", flag, value}, "true"), folder);
        EXPECT_EQ(ran.code, 2) << flag;
        EXPECT_THAT(ran.err, testing::AllOf(HasSubstr(flag), HasSubstr(why)));
      };
  refused("--workdir", "nowhere", "got 'nowhere'");
  const Ran planned = muster({"run", "--dry-run", "--workdir", "nowhere", "true"}, folder);
  EXPECT_EQ(planned.code, 2);
  EXPECT_THAT(planned.err, HasSubstr("--workdir: expected a folder, got 'nowhere'"));
  refused("--env", "=x", "expected NAME=VALUE");
  refused("--env", "BAD NAME=x", "expected NAME=VALUE with a name of letters");
  refused("--env", "RANK=7", "no variable that muster sets for each rank, got 'RANK'");
  refused("--env", "NOT_SET_AT_ALL", "got 'NOT_SET_AT_ALL'");
  refused("--timeout", "soon", "soon");
}

TEST(Run, EndlessFilesAreAnErrorInALine) {
  const ScratchFolder folder;
  for (const char* flag : {"--plan", "--scores", "--hostfile", "--map"}) {
    const std::string file = flag == std::string("--map") ? "@/dev/zero" : "/dev/zero";
    const Ran ran = muster({"run", flag, file, "true"}, folder);
    EXPECT_EQ(ran.code, 2) << flag << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("expected a file of at most 64 MiB as '/dev/zero', got more"))
        << flag;
  }
  EXPECT_THAT(muster({"run", "--config", "/dev/zero", "true"}, folder).err,
              HasSubstr("--config /dev/zero: expected at most 1 MiB, got more"));
}

TEST(Run, NotFoundAndNotExecutable) {
  const ScratchFolder folder;
  const Ran not_found = muster({"run", "no-such-program"}, folder);
  EXPECT_EQ(not_found.code, 127);
  EXPECT_THAT(not_found.err, HasSubstr("muster run: cannot start 'no-such-program': not found"));
  EXPECT_EQ(std::count(not_found.err.begin(), not_found.err.end(), '\n'), 1);
  const Ran no_script = muster({"run", "no-such-script.py"}, folder);
  EXPECT_EQ(no_script.code, 127);
  const Ran not_executable = muster({"run", folder.write("data", "text")}, folder);
  EXPECT_EQ(not_executable.code, 126);
  EXPECT_THAT(not_executable.err, HasSubstr("chmod +x"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/runs"))
      << "nothing was started, so nothing written";
}

TEST(Run, AFirstLineThatTheKernelCuts) {
  const ScratchFolder folder;
  // The interpreter's path is that of /bin/sh in a long way.
  const auto run_with_line_of = [&](size_t length) {
    const std::string line = "#!" + std::string(length - 8, '/') + "bin/sh";
    const std::string script = folder.write(cat("script", length), line + "\n");
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    return muster({"run", "-n", "1", script}, folder);
  };
  EXPECT_EQ(run_with_line_of(255).code, 0);
  const Ran ran = run_with_line_of(256);
  EXPECT_EQ(ran.code, 126);
  EXPECT_THAT(ran.err, HasSubstr("its #! line is longer than 255 characters; shorten it, or name"));
}

TEST(Program, ARunsFolderInThePlaceOfACheckpoint) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() + "/run/checkpoints/step-1");
  const Ran ran = muster({"checkpoint", "show", "run"}, folder);
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("got a run's folder; name one of its checkpoints"));
}

TEST(Run, BadUsageIsOneLineAndTwo) {
  const ScratchFolder folder;
  const std::vector<std::vector<std::string>> bad = {
      {"run"},
      {"run", "-n", "0", "true"},
      {"run", "-n", "-1", "true"},
      {"run", "-n", "many", "true"},
      {"run", "--bogus", "true"},
      {"run", "--nnodes", "2", "true"},
      {"run", "--master-port", "70000", "true"},
      {"run", "--master-addr", "no-such-host.invalid", "--master-port", "29500", "true"},
      {"run", "--tee", "9", "true"},
      {"run", "--max-restarts", "-1", "true"},
      {"run", "--max-restarts", "x", "true"},
      {"run", "-n", "gpu", "--map", "0,z", "true"},
      {"run", "-n", "xpu", "true"},
      {"run", "--map", "", "true"},
      {"run", "--inventory", "", "true"},
      {"run", "--policy", "", "true"},
      {"run", "--run-dir", "", "true"},
      {"run", "--virtual-local-rank", "--visibility", "job", "true"},
      {"run", "--logs-specs", "mine", "true"},
      {"run", "--print-completion", "bash", "true"},
      {"frobnicate"},
      {"train.py"},
      {},
  };
  for (const auto& args : bad) {
    const Ran ran = muster(args, folder);
    EXPECT_EQ(ran.code, 2) << join(args, " ") << "\n" << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << join(args, " ") << "\n"
                                                                   << ran.err;
    EXPECT_EQ(ran.out, "") << join(args, " ");
  }
}

TEST(Program, AMistypedFlagOrCommandGetsASuggestion) {
  struct Case {
    std::vector<std::string> args;
    const char* error;
  };
  const std::vector<Case> cases = {
      {{"run", "--max-restart", "3", "true"},
       "muster run: expected a flag of muster run, got '--max-restart'; did you mean "
       "'--max-restarts'?\n"},
      {{"run", "--nproc_per_nod=2", "true"},
       "got '--nproc-per-nod'; did you mean '--nproc-per-node'?\n"},
      {{"plan", "--polcy", "fastest"}, "got '--polcy'; did you mean '--policy'?\n"},
      {{"devices", "--jsn"}, "got '--jsn'; did you mean '--json'?\n"},
      {{"tasks", "--need_gpus", "1", "q.toml"}, "got '--need_gpus'; did you mean '--need-gpus'?\n"},
      {{"tasks", "--swep", "x=1", "--", "true"}, "got '--swep'; did you mean '--sweep'?\n"},
      {{"ps", "--jso"}, "did you mean '--json'?\n"},
      {{"stop", "--al"}, "did you mean '--all'?\n"},
      {{"doctor", "--jsno"}, "did you mean '--json'?\n"},
      {{"--versoin"},
       "muster: expected a flag of muster, got '--versoin'; did you mean '--version'?\n"},
      {{"secret", "--quite-another"}, "got '--quite-another'; see muster secret --help\n"},
      {{"rnu", "true"}, "got 'rnu'; did you mean 'run'?\n"},
      {{"checkpoint", "lss"},
       "muster checkpoint: expected ls, show, verify, diff or export, got 'lss'; did you mean "
       "'ls'?\n"},
      {{"checkpoint"},
       "expected ls, show, verify, diff or export, got none; see muster checkpoint --help\n"},
  };
  const ScratchFolder folder;
  for (const Case& one : cases) {
    const Ran ran = muster(one.args, folder);
    EXPECT_EQ(ran.code, 2) << join(one.args, " ");
    EXPECT_THAT(ran.err, HasSubstr(one.error)) << join(one.args, " ");
  }
}

TEST(Run, GpusAskedForWhereThereAreNone) {
  const ScratchFolder folder;
  EXPECT_NE(muster({"run", "-n", "gpu", "true"}, folder).code, 0);
  EXPECT_NE(muster({"run", "--gpus", "0", "true"}, folder).code, 0);
}

TEST(Run, PortTakenIsNamed) {
  const ScratchFolder folder;
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  address.sin_family = AF_INET;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  const Ran ran = muster({"run", "--master-port", cat(port), "true"}, folder);
  EXPECT_EQ(ran.code, 1);
  const std::string in_use = cat("got ", port, ", which is in use by process ", ::getpid());
  EXPECT_THAT(ran.err, HasSubstr(in_use));
  const Ran node = muster({"run",
                           "--nnodes",
                           "2",
                           "--node-rank",
                           "0",
                           "--rdzv-endpoint",
                           cat("127.0.0.1:", port),
                           "true"},
                          folder);
  EXPECT_EQ(node.code, 1);
  EXPECT_THAT(node.err, AllOf(HasSubstr(in_use), HasSubstr("give every host another port")));
}

// A launcher holds its port without listening there, so the system names nobody.
TEST(Run, PortOfAnotherJobIsNamedAsIts) {
  const ScratchFolder folder;
  const std::string other = ProgramSettings().program + " run --master-port $MASTER_PORT true";
  const Ran ran = muster(sh({"-q", "-n", "1", "--rdzv-id", "first"}, other), folder);
  EXPECT_THAT(ran.err, testing::ContainsRegex("in use by job first of process [0-9]+ \\(sh"));
}

// Scripts for torchrun may pass them on one host too, so they are no error.
TEST(Run, FlagsForSeveralHostsAreSaidOnOne) {
  const ScratchFolder folder;
  const Ran ran = muster({"run",
                          "-q",
                          "--secret-file",
                          "nofile",
                          "--local-addr",
                          "10.0.0.1",
                          "--rdzv-conf",
                          "join_timeout=nan",
                          "true"},
                         folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("--secret-file, --local-addr: of no effect on one host"),
                    HasSubstr("--rdzv-conf join_timeout: expected a time"),
                    HasSubstr("'nan'")));
  const Ran usual = muster({"run", "-q", "--rdzv-conf", "join_timeout=600", "true"}, folder);
  EXPECT_EQ(usual.err, "");
}

// A user that may have no more processes cannot have a thread either.
TEST(Run, AThreadThatCannotBeIsNamedWithItsLimit) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "another user is needed, who has no process";
  const ScratchFolder folder;
  const Ran ran = with_few_processes(1, 1, "run -q -n 1 true", folder).finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("expected one more thread"), HasSubstr("ulimit -u")));
}

// A pipe with a name, which any user's process waits at until it is opened here.
std::string make_gate(const ScratchFolder& folder, const std::string& name) {
  const std::string gate = cat(folder.path(), "/", name);
  EXPECT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  EXPECT_EQ(::chmod(gate.c_str(), 0666), 0);
  return gate;
}

void await_text(const std::string& file, const std::string& text) {
  for (const Deadline deadline(std::chrono::seconds(60)); !deadline.passed();) {
    if (try_read_file(file).value_or("").find(text) != std::string::npos)
      return;
    ::usleep(10'000);
  }
  ADD_FAILURE() << text << " did not come in " << file;
}

// Others of its user have taken the room when the rank is to start again, and give it back.
TEST(Run, ARankThatStartsAgainAndFindsNoProcessWaits) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "another user is needed, who has no process";
  constexpr int kPlace = 5;
  const ScratchFolder folder;
  const std::string fails = make_gate(folder, "fails");
  const std::string leave = make_gate(folder, "leave");
  folder.write("rank.sh", "[ $MUSTER_ATTEMPT = 1 ] && exit 0; echo up >up; : <fails; exit 1\n");
  folder.write("others.sh", "for i in $(seq 60); do (: <leave) & done; echo there >there; wait\n");
  const std::string said = folder.path() + "/said";
  Program run =
      with_few_processes(40, kPlace, "run --max-restarts 1 -n 1 sh rank.sh 2>said", folder);
  await_text(folder.path() + "/up", "up");
  Program others = from_shell(cat("exec ", as_another_user(kPlace), "sh others.sh"), folder);
  await_text(folder.path() + "/there", "there");
  const Fd failing(::open(fails.c_str(), O_RDWR | O_CLOEXEC));
  const std::string waits = "ranks cannot be started again yet: ";
  await_text(said, waits);
  const Fd leaving(::open(leave.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(run.finish().code, 0) << read_file(said);
  others.finish();
  const std::string all = read_file(said);
  EXPECT_EQ(all.find(waits), all.rfind(waits)) << all;
  EXPECT_THAT(all, HasSubstr("ulimit -u"));
}

TEST(Run, TheVariableOfAFlagIsTrueOrFalse) {
  const ScratchFolder folder;
  const Ran ran = muster({"run", "true"}, folder, {.environment = {{"PET_STANDALONE", "nan"}}});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("expected true or false, got 'nan'"));
}

// The lines of help, with what stands on a line of its own behind its flag.
std::vector<std::string> flags_in(const std::string& help) {
  std::vector<std::string> flags;
  for (const std::string& line : split(help.substr(0, help.find("Accepted for compat")), '\n')) {
    if (line.starts_with("  -"))
      flags.push_back(line);
    else if (line.starts_with("      ") && !flags.empty())
      flags.back() += " " + std::string(trim(line));
  }
  return flags;
}

TEST(Run, HelpSaysExitCodesAndWhatIsDoneWithoutAFlag) {
  const ScratchFolder folder;
  for (const char* const command : {"run",
                                    "plan",
                                    "devices",
                                    "tasks",
                                    "checkpoint ls",
                                    "checkpoint show",
                                    "checkpoint verify",
                                    "checkpoint diff",
                                    "checkpoint export",
                                    "top",
                                    "report",
                                    "ps",
                                    "stop",
                                    "doctor",
                                    "secret",
                                    "completion",
                                    "manual"}) {
    std::vector<std::string> args = split(command, ' ');
    args.emplace_back("--help");
    const std::string help = muster(args, folder).out;
    EXPECT_THAT(help, HasSubstr("xit code")) << command;
    for (const std::string& flag : flags_in(help)) {
      // "--name VALUE", and neither "--name   Text" nor "--name Excludes: --other".
      const std::string value =
          flag.substr(std::min(flag.find(' ', flag.find("--")), flag.size() - 3));
      const bool takes_value = std::isupper(value[1]) != 0 && std::islower(value[2]) == 0;
      EXPECT_TRUE(!takes_value || trim(flag).ends_with("]")) << command << ": " << flag;
    }
  }
}

TEST(Run, AFileOfAFlagThatIsNotThereIsWrongUsage) {
  const ScratchFolder folder;
  for (const char* const flag :
       {"--inventory", "--plan", "--scores", "--topology", "--hostfile", "--config"}) {
    const Ran ran = muster({"run", flag, "none", "true"}, folder);
    EXPECT_EQ(ran.code, 2) << flag;
    EXPECT_EQ(ran.err,
              cat("muster run: ",
                  flag,
                  ": cannot open 'none': No such file or directory; correct the path\n"));
  }
  const Ran map = muster({"run", "--map", "@none", "true"}, folder);
  EXPECT_EQ(map.code, 2);
  EXPECT_THAT(map.err, HasSubstr("--map: cannot open 'none'"));
  folder.write("map.txt",
               "\xef\xbb\xbf"
               "0,1\n");
  EXPECT_THAT(muster({"run", "--map", "map.txt", "true"}, folder).err,
              HasSubstr("that name is --map @map.txt"));
  EXPECT_THAT(muster({"run", "--map", "@map.txt", "true"}, folder).err,
              HasSubstr("expected a GPU that can be used"));
}

TEST(Run, AnAddressOfAnotherMachineIsNoLocalOne) {
  const ScratchFolder folder;
  for (const char* const address : {"192.0.2.7", "nowhere.invalid"}) {
    const Ran ran = muster({"run",
                            "--nnodes",
                            "2",
                            "--node-rank",
                            "0",
                            "--rdzv-endpoint",
                            "127.0.0.1:29417",
                            "--local-addr",
                            address,
                            "true"},
                           folder);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err,
                HasSubstr(cat("--local-addr: expected an address or a name of this host, which has "
                              "to listen there, got '",
                              address,
                              "'")));
  }
}

TEST(Run, HelpStartsNothing) {
  const ScratchFolder folder;
  const Ran help = muster({"help", "run", "-n", "1", "sh", "-c", "touch started"}, folder);
  EXPECT_EQ(help.code, 0) << help.err;
  EXPECT_THAT(help.out, HasSubstr("Usage: muster run"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/started"));
  EXPECT_THAT(muster({"help", "checkpoint", "show", "x"}, folder).out, HasSubstr("PATH"));
}

// "$HOSTS" of a variable that was not set is not a job on this host.
TEST(Run, AnEmptyValueIsRefused) {
  const ScratchFolder folder;
  for (const char* const flag : {"--hosts",
                                 "--plan",
                                 "-n",
                                 "--node-rank",
                                 "--mesh",
                                 "--scores",
                                 "--rank-memory",
                                 "--map-command",
                                 "--master-addr",
                                 "--rdzv-id",
                                 "--local-addr",
                                 "--max-restarts",
                                 "--role"}) {
    const Ran ran = muster({"run", "-q", flag, "", "touch", "started"}, folder);
    EXPECT_EQ(ran.code, 2) << flag;
    EXPECT_THAT(ran.err, HasSubstr("got ''")) << flag;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/started"));
  const Ran as_torchrun =
      muster({"run", "-q", "--rdzv-conf", "", "--local-ranks-filter", "", "true"}, folder);
  EXPECT_EQ(as_torchrun.code, 0) << as_torchrun.err;
}

TEST(Run, APictureGoesThroughAPipe) {
  const ScratchFolder folder;
  const Ran ran = muster({"plan", "--svg", "/dev/stderr"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("<svg"));
}

}  // namespace
}  // namespace muster
