// Several agents of one job through the real program: each stands for a host. They share this
// machine, so addresses are loopback's; tests/cluster/hosts.py has hosts with networks of their
// own.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "muster/base/process_status.h"
#include "muster/launch/port.h"
#include "muster/store/secret.h"
#include "tests/cli/muster_program.h"
#include "tests/support/stranger.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using Args = std::vector<std::string>;

// A host that is only slow is not given up: every end that these tests bring about is told by a
// connection's.
constexpr const char* kPatient = "keep_alive_interval=60,keep_alive_max_attempt=10";

class Agents : public testing::Test {
 protected:
  Agents() : port_(0) {
    std::filesystem::create_directory(folder_.path() + "/runtime");
    ::chmod((folder_.path() + "/runtime").c_str(), 0700);
  }

  ProgramSettings settings() const {
    ProgramSettings settings;
    settings.environment = {{"MUSTER_RUNTIME_DIR", folder_.path() + "/runtime"}};
    return settings;
  }

  std::string endpoint() const { return cat("127.0.0.1:", port_.port()); }

  std::unique_ptr<Program> start(Args flags, const Args& program) {
    Args args = {"run", "--rdzv-endpoint", endpoint(), "-q"};
    args.insert(args.end(), flags.begin(), flags.end());
    args.insert(args.end(), program.begin(), program.end());
    return std::make_unique<Program>(args, folder_, settings());
  }

  std::unique_ptr<Program> node(int rank,
                                const Args& program,
                                Args more = {},
                                const std::string& nnodes = "2") {
    Args flags = {"--nnodes", nnodes, "--node-rank", cat(rank), "-n", "1"};
    flags.insert(flags.end(), more.begin(), more.end());
    return start(flags, program);
  }

  std::unique_ptr<Program> elastic(const Args& program, Args more = {}) {
    Args flags = {"--nnodes",
                  "1:3",
                  "--rdzv-backend",
                  "c10d",
                  "-n",
                  "1",
                  "--rdzv-conf",
                  cat("last_call_timeout=0,", kPatient)};
    flags.insert(flags.end(), more.begin(), more.end());
    return start(flags, program);
  }

  // Invented by a stand-in for the driver's library.
  ProgramSettings with_gpus(int host, int count) const {
    ProgramSettings of_host = settings();
    std::string text = "version=550.54";
    std::string visible;
    for (int gpu = 0; gpu < count; ++gpu) {
      text += cat("|uuid=GPU-",
                  host,
                  "000000",
                  gpu,
                  "-0000-4000-8000-000000000000,name=Test GPU,total=8589934592",
                  ",free=8589934592,cc=9.0,pci=00000000:0",
                  gpu + 1,
                  ":00.0");
      visible += cat(gpu == 0 ? "" : ",", gpu);
    }
    of_host.environment["MUSTER_NVML_LIBRARY"] = FAKE_NVML_LIBRARY;
    of_host.environment["FAKE_NVML"] = text;
    of_host.environment["CUDA_VISIBLE_DEVICES"] = visible;
    return of_host;
  }

  // An agent of a host with one GPU, at the endpoint.
  std::unique_ptr<Program> with_gpu(int gpu_of, Args flags, const Args& program) {
    flags.insert(flags.begin(), {"run", "-q", "--rdzv-endpoint", endpoint()});
    flags.insert(flags.end(), program.begin(), program.end());
    return std::make_unique<Program>(flags, folder_, with_gpus(gpu_of, 1));
  }

  static Args shell(const std::string& script) { return {"sh", "-c", script}; }

  ScratchFolder folder_;
  PortReservation port_;
};

constexpr const char* kSay =
    "echo $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK of "
    "$GROUP_WORLD_SIZE, "
    "role $ROLE_RANK of $ROLE_WORLD_SIZE, $MASTER_ADDR";

constexpr const char* kHear =
    "trap 'echo heard $RANK; exit 0' USR1; echo up $RANK; while :; do sleep 0.02; done";

// Whether the file came before anybody would wait for it.
bool comes(const std::string& path) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!std::filesystem::exists(path) && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return std::filesystem::exists(path);
}

// Two GPUs on one, one on the other.
TEST_F(Agents, HostsWithDifferentNumbersOfGpusAreOneJob) {
  const auto agent = [&](int rank, const ProgramSettings& of_host) {
    Args args = {"run", "--rdzv-endpoint", endpoint(), "--nnodes", "2", "--node-rank", cat(rank)};
    for (const std::string& word :
         shell("echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $MUSTER_DEVICE"))
      args.push_back(word);
    return std::make_unique<Program>(args, folder_, of_host);
  };
  auto a = agent(0, with_gpus(0, 2));
  auto b = agent(1, with_gpus(1, 1));
  const Ran first = a->finish();
  const Ran second = b->finish();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.out,
              AllOf(HasSubstr("0 of 3, 0 of 2 on GPU-00000000-"),
                    HasSubstr("1 of 3, 1 of 2 on GPU-00000001-")));
  EXPECT_THAT(second.out, HasSubstr("2 of 3, 0 of 1 on GPU-10000000-"));
  EXPECT_THAT(second.err, HasSubstr("host 1 of 2: rank 2 of 3; "));
}

TEST_F(Agents, HostsWithDifferentNumbersOfRanksAreOneJob) {
  auto b = node(1, shell(kSay), {"-n", "2"});
  auto a = node(0, shell(kSay));
  const Ran first = a->finish();
  const Ran second = b->finish();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.out, HasSubstr("0 of 3, local 0 of 1, host 0 of 2, role 0 of 3, 127.0.0.1"));
  EXPECT_THAT(second.out,
              AllOf(HasSubstr("1 of 3, local 0 of 2, host 1 of 2, role 1 of 3"),
                    HasSubstr("2 of 3, local 1 of 2, host 1 of 2, role 2 of 3")));
}

// The file of a rank's plan is its host's part, and goes with the job; plan.json is whole.
TEST_F(Agents, EachHostHasItsPartOfThePlan) {
  const std::string run = folder_.path() + "/run";
  const auto words = shell("cp $MUSTER_PLAN seen.$RANK");
  auto b = node(1, words, {"-n", "2", "--run-dir", run});
  auto a = node(0, words, {"--run-dir", run});
  const Ran first = a->finish();
  const Ran second = b->finish();
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  const auto read = [&](const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  };
  const auto whole = read(run + "/plan.json");
  EXPECT_EQ(whole.at("ranks").size(), 3U);
  EXPECT_FALSE(whole.contains("part"));
  for (int rank = 0; rank < 3; ++rank) {
    const auto part = read(folder_.path() + cat("/seen.", rank));
    EXPECT_EQ(part.at("world_size"), 3);
    EXPECT_EQ(part.at("ranks").size(), rank == 0 ? 1U : 2U) << rank;
    EXPECT_EQ(part.at("part").at("first_rank"), rank == 0 ? 0 : 1);
    EXPECT_EQ(part.at("part").at("num_hosts"), 2);
    for (const auto& own : part.at("ranks"))
      EXPECT_EQ(own, whole.at("ranks").at(own.at("rank").get<size_t>()));
  }
  EXPECT_FALSE(std::filesystem::exists(run + "/plans"));
}

// Hosts that share no folder: only the first has the whole plan, until somebody asks another for
// it.
TEST_F(Agents, MusterTopAtAnotherHostFindsTheWholePlanThere) {
  const std::string run = folder_.path() + "/b";
  const auto words = shell("echo up $RANK; until [ -e seen ]; do sleep 0.02; done");
  auto b = node(1, words, {"-n", "2", "--run-dir", run});
  auto a = node(0, words, {"--run-dir", folder_.path() + "/a"});
  a->read_until("up 0");
  b->read_until("up 1");
  EXPECT_TRUE(std::filesystem::exists(folder_.path() + "/a/plan.json"));
  EXPECT_FALSE(std::filesystem::exists(run + "/plan.json"));
  const Deadline deadline(std::chrono::seconds(60));
  nlohmann::json view;
  do {
    ASSERT_FALSE(deadline.passed()) << view;
    const Ran top = Program({"top", "--json", run}, folder_, settings()).finish();
    ASSERT_EQ(top.code, 0) << top.err;
    view = nlohmann::json::parse(top.out);
  } while (view.at("ranks").size() < 3);
  EXPECT_EQ(read_file(run + "/plan.json"), read_file(folder_.path() + "/a/plan.json"));
  std::ofstream(folder_.path() + "/seen").flush();
  EXPECT_EQ(a->finish().code, 0);
  EXPECT_EQ(b->finish().code, 0);
}

// Node 1 begins alone; node 0, which comes later, is the first host then. Each has a folder of its
// own, where `muster top` and `muster report` would take the plan of one host for the job's.
TEST_F(Agents, APlanThatIsNoMoreOfThisRoundGoes) {
  const auto words = shell("echo up $RANK of $WORLD_SIZE; until [ -e seen ]; do sleep 0.02; done");
  const auto node_of = [&](int number) {
    return elastic(words,
                   {"--node-rank", cat(number), "--run-dir", cat(folder_.path(), "/", number)});
  };
  const std::string plan = folder_.path() + "/1/plan.json";
  auto b = node_of(1);
  b->read_until("up 0 of 1");
  EXPECT_TRUE(std::filesystem::exists(plan));
  auto a = node_of(0);
  a->read_until("up 0 of 2");
  b->read_until("up 1 of 2");
  EXPECT_FALSE(std::filesystem::exists(plan)) << "of a job of one host";
  EXPECT_TRUE(std::filesystem::exists(folder_.path() + "/0/plan.json"));
  std::ofstream(folder_.path() + "/seen").flush();
  EXPECT_EQ(a->finish().code, 0);
  EXPECT_EQ(b->finish().code, 0);
}

// What somebody asked for there is the plan of a job that goes on without the host.
TEST_F(Agents, APlanGoesWithAHostThatLeaves) {
  const auto words = shell("echo up $RANK of $WORLD_SIZE; until [ -e seen ]; do sleep 0.02; done");
  const auto node_of = [&](int number) {
    return elastic(words,
                   {"--node-rank", cat(number), "--run-dir", cat(folder_.path(), "/", number)});
  };
  const std::string plan = folder_.path() + "/1/plan.json";
  auto a = node_of(0);
  a->read_until("up 0 of 1");
  auto b = node_of(1);
  b->read_until("up 1 of 2");
  const Deadline deadline(std::chrono::seconds(60));
  while (!std::filesystem::exists(plan) && !deadline.passed())
    ASSERT_EQ(
        Program({"top", "--json", cat(folder_.path(), "/1")}, folder_, settings()).finish().code,
        0);
  ASSERT_TRUE(std::filesystem::exists(plan));
  ::kill(b->pid(), SIGTERM);
  EXPECT_EQ(b->finish().code, 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(plan));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() + "/0/plan.json"));
  std::ofstream(folder_.path() + "/seen").flush();
  EXPECT_EQ(a->finish().code, 0);
}

TEST_F(Agents, APlanOfAnEarlierStartGoes) {
  const auto words = shell("exit 0");
  const std::string run = folder_.path() + "/b";
  ASSERT_EQ(
      Program({"run", "-n", "3", "--run-dir", run, "true"}, folder_, settings()).finish().code, 0);
  EXPECT_TRUE(std::filesystem::exists(run + "/plan.json"));
  auto b = node(1, words, {"--run-dir", run});
  auto a = node(0, words, {"--run-dir", folder_.path() + "/a"});
  EXPECT_EQ(a->finish().code, 0);
  EXPECT_EQ(b->finish().code, 0);
  EXPECT_FALSE(std::filesystem::exists(run + "/plan.json"));
}

// Whoever is the first host then has the same folder.
TEST_F(Agents, APlanInACommonFolderStays) {
  const auto words = shell("echo up $RANK of $WORLD_SIZE; until [ -e seen ]; do sleep 0.02; done");
  const auto node_of = [&](int number) {
    return elastic(words, {"--node-rank", cat(number), "--run-dir", folder_.path() + "/run"});
  };
  auto b = node_of(1);
  b->read_until("up 0 of 1");
  auto a = node_of(0);
  a->read_until("up 0 of 2");
  b->read_until("up 1 of 2");
  const auto plan = nlohmann::json::parse(read_file(folder_.path() + "/run/plan.json"));
  EXPECT_EQ(plan.at("world_size"), 2);
  std::ofstream(folder_.path() + "/seen").flush();
  EXPECT_EQ(a->finish().code, 0);
  EXPECT_EQ(b->finish().code, 0);
}

TEST_F(Agents, AFailureIsToldOnEveryHost) {
  // Rank 1 fails only when rank 0 runs, else that one need not be started any more.
  const Args program = shell(
      "[ $RANK = 1 ] && { until [ -e up ]; do sleep 0.02; done; echo no such luck >&2; exit 7; }; "
      ": > up; "
      "sleep 60");
  auto b = node(1, program, {"--run-dir", "b"});
  auto a = node(0, program, {"--run-dir", "a"});
  for (Program* agent : {a.get(), b.get()}) {
    const Ran ran = agent->finish();
    EXPECT_EQ(ran.code, 7);
    EXPECT_THAT(ran.err,
                AllOf(HasSubstr("rank 1 failed first: exit code 7"),
                      HasSubstr("no such luck"),
                      HasSubstr("rank 0: ended by muster")));
  }
  for (const char* run : {"a", "b"}) {
    const auto report =
        nlohmann::json::parse(read_file(cat(folder_.path(), "/", run, "/failure.json")));
    EXPECT_EQ(report["first"]["rank"], 1) << run;
  }
}

// At the port that the host of rank 0 holds; nobody uses those of the others.
TEST_F(Agents, AStrangerAtTheMasterPortEndsTheJobOnEveryHost) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  const Args program = shell("echo \"port $MASTER_PORT;\"; exec sleep 1000");
  auto b = node(1, program, {"--max-restarts", "3"});
  auto a = node(0, program, {"--max-restarts", "3"});
  const std::string out = b->read_until(";");
  a->read_until(";");
  const size_t at = out.find("port ") + 5;
  const Stranger stranger(
      static_cast<int>(parse_int(out.substr(at, out.find(';') - at)).value_or(0)));
  for (Program* agent : {a.get(), b.get()}) {
    const Ran ran = agent->finish();
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err,
                AllOf(HasSubstr(cat("expected a rank of this job to listen there, got process ",
                                    stranger.pid(),
                                    " (")),
                      Not(HasSubstr("failed first")),
                      Not(HasSubstr("restart 1"))));
  }
}

TEST_F(Agents, AllRanksStartAgainWithinTheBudget) {
  // Rank 0 fails only when rank 1 has spoken, else that one may be ended before it could.
  const Args program = shell(
      "echo attempt $MUSTER_ATTEMPT restart $TORCHELASTIC_RESTART_COUNT; [ $MUSTER_ATTEMPT = 1 ] "
      "&& exit 0; "
      "[ $RANK = 1 ] && { : > spoken; sleep 60; }; until [ -e spoken ]; do sleep 0.02; done; exit "
      "9");
  auto b = node(1, program, {"--max-restarts", "1"});
  auto a = node(0, program, {"--max-restarts", "1"});
  const Ran first = a->finish();
  const Ran second = b->finish();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out,
              AllOf(HasSubstr("attempt 0 restart 0"), HasSubstr("attempt 1 restart 1")));
  EXPECT_THAT(first.err, HasSubstr("starting all ranks again (restart 1 of 1)"));
}

// Descendants write their pids; none may be left.
TEST_F(Agents, AHostThatIsKilledEndsTheOthersAtOnce) {
  const Args program = shell("echo up $$; sleep 300");
  // Not by the silence of its signs of life: that would take longer than an agent may take here.
  auto b = node(1, program, {"--rdzv-conf", kPatient});
  auto a = node(0, program, {"--rdzv-conf", kPatient});
  a->read_until("up ");
  b->read_until("up ");
  ::kill(b->pid(), SIGKILL);
  const Ran ran = a->finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("is gone"));
  b->finish();
}

TEST_F(Agents, WhenTheHostThatServesIsKilledTheOthersEndCleanly) {
  const Args program = shell("echo up $$; sleep 300");
  auto b = node(1, program);
  auto a = node(0, program);
  a->read_until("up ");
  const std::string up = b->read_until("up ");
  const pid_t rank = std::stoi(up.substr(up.find("up ") + 3));
  ::kill(a->pid(), SIGKILL);
  const Ran ran = b->finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("the host that serves the rendezvous is gone"));
  EXPECT_NE(::kill(rank, 0), 0) << "its rank is left";
  a->finish();
}

TEST_F(Agents, SigtermToOneHostEndsAFixedJob) {
  const Args program = shell("echo up; sleep 300");
  auto b = node(1, program);
  auto a = node(0, program);
  a->read_until("up");
  b->read_until("up");
  ::kill(b->pid(), SIGTERM);
  EXPECT_EQ(a->finish().code, 128 + SIGTERM);
  EXPECT_EQ(b->finish().code, 128 + SIGTERM);
}

// A host that stopped would be given up by the others.
TEST_F(Agents, CtrlZStopsNothingAndSaysSo) {
  const Args program =
      shell("echo up $RANK; until grep -q 'Ctrl-Z) has no effect' err; do :; done");
  const Fd err(
      ::open((folder_.path() + "/err").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  ProgramSettings of_first = settings();
  of_first.stderr_fd = err.get();
  auto b = node(1, program);
  Program a({"run",
             "--rdzv-endpoint",
             endpoint(),
             "-q",
             "--nnodes",
             "2",
             "--node-rank",
             "0",
             "-n",
             "1",
             "sh",
             "-c",
             program.back()},
            folder_,
            of_first);
  a.read_until("up 0");
  b->read_until("up 1");
  ::kill(a.pid(), SIGTSTP);
  EXPECT_EQ(a.finish().code, 0);
  EXPECT_EQ(b->finish().code, 0);
}

TEST_F(Agents, AnElasticJobShrinksAndGrows) {
  const Args program = shell(
      "echo world $WORLD_SIZE attempt $MUSTER_ATTEMPT restarts $TORCHELASTIC_RESTART_COUNT; "
      "[ $WORLD_SIZE = 2 ] && [ -e done ] && exit 0; sleep 300 & trap 'kill $!; exit 1' TERM; "
      "wait");
  auto a = elastic(program);
  a->read_until("world 1 attempt 0");
  auto b = elastic(program);
  a->read_until("world 2 attempt 1 restarts 0");
  b->read_until("world 2 attempt 1");
  ::kill(b->pid(), SIGTERM);
  EXPECT_EQ(b->finish().code, 128 + SIGTERM);
  a->read_until("world 1 attempt 2 restarts 0");
  write_file(folder_.path() + "/done", "");
  auto c = elastic(program);
  const Ran last = c->finish();
  EXPECT_EQ(last.code, 0) << last.err;
  const Ran first = a->finish();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("world 2 attempt 3 restarts 0"));
}

TEST_F(Agents, AnElasticJobGoesOnWithoutAHostThatWasKilled) {
  const Args program = shell(
      "echo world $WORLD_SIZE attempt $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 2 ] && exit 0; "
      "sleep 300");
  auto a = elastic(program);
  a->read_until("world 1 attempt 0");
  auto b = elastic(program);
  b->read_until("world 2 attempt 1");
  ::kill(b->pid(), SIGKILL);
  const Ran ran = a->finish();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("world 1 attempt 2"));
  EXPECT_THAT(ran.err, HasSubstr("going on without it"));
  b->finish();
}

// What the PyTorchJob operator sets in its pods, and an indexed Job's own variable.
TEST_F(Agents, KubernetesVariablesSayEverything) {
  for (const bool indexed : {false, true}) {
    std::vector<std::unique_ptr<Program>> pods;
    for (int pod = 0; pod < 2; ++pod) {
      ProgramSettings in_pod = settings();
      in_pod.environment["PET_NNODES"] = "2";
      in_pod.environment["PET_NPROC_PER_NODE"] = "1";
      in_pod.environment["PET_MASTER_ADDR"] = "127.0.0.1";
      in_pod.environment["PET_MASTER_PORT"] = cat(port_.port());
      in_pod.environment[indexed ? "JOB_COMPLETION_INDEX" : "PET_NODE_RANK"] = cat(pod);
      pods.push_back(
          std::make_unique<Program>(Args{"run", "-q", "sh", "-c", kSay}, folder_, in_pod));
    }
    for (int pod = 0; pod < 2; ++pod) {
      const Ran ran = pods[static_cast<size_t>(pod)]->finish();
      EXPECT_EQ(ran.code, 0) << ran.err;
      EXPECT_THAT(ran.out, HasSubstr(cat(pod, " of 2, local 0 of 1, host ", pod, " of 2")))
          << indexed;
    }
  }
}

TEST_F(Agents, TheMissingHostIsNamed) {
  // Time enough for this one to be there itself.
  auto a = node(0, {"true"}, {"--rdzv-conf", "join_timeout=5"});
  const Ran ran = a->finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("expected 2 hosts within 5.0s"), HasSubstr("missing: node rank 1")));
}

TEST_F(Agents, TheSecondHostWithANumberIsRefused) {
  auto a = node(0, {"true"}, {}, "3");
  auto b = node(1, {"true"}, {}, "3");
  auto c = node(1, {"true"}, {}, "3");
  // Whichever of the two came second.
  pollfd ends[2] = {{.fd = -1, .events = POLLIN, .revents = 0},
                    {.fd = -1, .events = POLLIN, .revents = 0}};
  const Fd b_end(static_cast<int>(::syscall(SYS_pidfd_open, b->pid(), 0)));
  const Fd c_end(static_cast<int>(::syscall(SYS_pidfd_open, c->pid(), 0)));
  ends[0].fd = b_end.get();
  ends[1].fd = c_end.get();
  ASSERT_EQ(::poll(ends, 2, 60'000), 1);
  Program* const refused = ends[0].revents != 0 ? b.get() : c.get();
  const Ran ran = refused->finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("expected a different number on every host, got 1"));
  auto d = node(2, {"true"}, {}, "3");
  EXPECT_EQ(d->finish().code, 0);
  EXPECT_EQ(a->finish().code, 0);
  EXPECT_EQ((refused == b.get() ? c : b)->finish().code, 0);
}

TEST_F(Agents, AnotherSecretIsRefused) {
  const std::string wrong = folder_.path() + "/wrong";
  write_file(wrong, Secret::make().hex());
  ::chmod(wrong.c_str(), 0600);
  auto a = node(0, {"true"});
  auto b = node(1, {"true"}, {"--secret-file", wrong});
  const Ran ran = b->finish();
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("secret"));
  auto right = node(1, {"true"});
  EXPECT_EQ(right->finish().code, 0);
  EXPECT_EQ(a->finish().code, 0);
}

TEST_F(Agents, AnotherJobAtTheEndpointIsNamed) {
  auto a = node(0, {"true"}, {"--rdzv-id", "one"});
  auto b = node(1, {"true"}, {"--rdzv-id", "another"});
  const Ran ran = b->finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr(endpoint()),
                    HasSubstr("to be that of job 'another' (--rdzv-id), got another job's"),
                    Not(HasSubstr("--secret-file"))));
  auto right = node(1, {"true"}, {"--rdzv-id", "one"});
  EXPECT_EQ(right->finish().code, 0);
  EXPECT_EQ(a->finish().code, 0);
}

TEST_F(Agents, AnotherCommandAtTheEndpointIsTold) {
  const std::string first = "echo up of $WORLD_SIZE; until [ -e seen ]; do sleep 0.02; done";
  const auto second = [&](const Args& more, const Args& words = {"sleep", "0"}) {
    std::filesystem::remove(folder_.path() + "/seen");
    auto a = elastic(shell(first), more);
    a->read_until("up of 1");
    auto b = elastic(words, more);
    a->read_until("up of 2");
    std::ofstream(folder_.path() + "/seen").flush();
    EXPECT_EQ(a->finish().code, 0);
    return b->finish().err;
  };
  EXPECT_THAT(second({}),
              AllOf(HasSubstr("warning: this host joins the job at " + endpoint()),
                    HasSubstr(" with 'sleep', and its first host with 'sh'"),
                    HasSubstr("give each a --rdzv-id")));
  EXPECT_THAT(second({}, shell(first + " # again")),
              AllOf(HasSubstr("info: this host joins the job"),
                    HasSubstr("with other arguments than its first host")));
  EXPECT_THAT(second({}, shell(first)),
              AllOf(HasSubstr("info: this host joins the job"),
                    HasSubstr("of this machine serves already); if these are two jobs")));
  EXPECT_THAT(second({"--rdzv-id", "one"}), Not(HasSubstr("this host joins")));
}

// The second host's coming makes another round, whose plan asks the command about that host.
TEST_F(Agents, ASignalEndsAQuestionOfALaterRound) {
  const auto agent = [&](int host) {
    Args args = {"run", "-q", "--rdzv-endpoint", endpoint(), "--nnodes", "1:2"};
    for (const std::string& word : {std::string("--rdzv-backend"),
                                    std::string("c10d"),
                                    std::string("--rdzv-conf"),
                                    cat("last_call_timeout=0,", kPatient),
                                    std::string("--map-command"),
                                    std::string("mkdir asked && echo 0 && exit; touch hangs; "
                                                "exec sleep 1000")})
      args.push_back(word);
    for (const std::string& word : shell("echo up; exec sleep 1000"))
      args.push_back(word);
    return std::make_unique<Program>(args, folder_, with_gpus(host, 1));
  };
  auto a = agent(0);
  a->read_until("up");
  auto b = agent(1);
  ASSERT_TRUE(comes(folder_.path() + "/hangs"));
  const Fd end(static_cast<int>(::syscall(SYS_pidfd_open, a->pid(), 0)));
  ::kill(a->pid(), SIGTERM);
  EXPECT_TRUE(ends_within(end, std::chrono::seconds(30))) << "the command may take a minute";
  EXPECT_EQ(a->finish().code, 128 + SIGTERM);
  EXPECT_EQ(b->finish().code, 128 + SIGTERM);
}

// The first host waits for the command's answer, and hears of the second's signal all the same.
TEST_F(Agents, ASignalToAnotherHostEndsAQuestion) {
  const auto agent = [&](int host) {
    return with_gpu(host,
                    {"--nnodes",
                     "2",
                     "--node-rank",
                     cat(host),
                     "--rdzv-conf",
                     kPatient,
                     "--map-command",
                     "touch hangs; exec sleep 1000"},
                    {"true"});
  };
  auto a = agent(0);
  auto b = agent(1);
  ASSERT_TRUE(comes(folder_.path() + "/hangs"));
  const Fd end(static_cast<int>(::syscall(SYS_pidfd_open, b->pid(), 0)));
  ::kill(b->pid(), SIGTERM);
  EXPECT_TRUE(ends_within(end, std::chrono::seconds(30))) << "the command may take a minute";
  EXPECT_EQ(a->finish().code, 128 + SIGTERM);
  EXPECT_EQ(b->finish().code, 128 + SIGTERM);
}

TEST_F(Agents, ASignalToOneHostReachesTheRanksOfAll) {
  auto b = node(1, shell(kHear));
  auto a = node(0, shell(kHear));
  a->read_until("up 0");
  b->read_until("up 1");
  ::kill(b->pid(), SIGUSR1);
  const Ran first = a->finish();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("heard 0"));
  EXPECT_THAT(b->finish().out, HasSubstr("heard 1"));
}

// The first host has said that it waits for others; ranks of the second catch no signal at first.
TEST_F(Agents, ASignalBeforeTheRanksRunWaitsForThem) {
  const std::string log = folder_.path() + "/err";
  const Fd err(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  ProgramSettings of_first = settings();
  of_first.stderr_fd = err.get();
  Args args = {"run", "--rdzv-endpoint", endpoint(), "-q", "--nnodes", "2", "--node-rank", "0"};
  for (const std::string& word : Args{"-n", "1", "sh", "-c", kHear})
    args.push_back(word);
  Program a(args, folder_, of_first);
  const Deadline deadline(std::chrono::seconds(60));
  while (!catches_signal(a.pid(), SIGUSR1) && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(a.pid(), SIGUSR1);
  while (!testing::Value(read_file(log), HasSubstr("came while no round runs")) &&
         !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  auto b = node(1, shell(cat("sleep 0.3; ", kHear)));
  EXPECT_THAT(a.finish().out, HasSubstr("heard 0"));
  const Ran second = b->finish();
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("heard 1"));
}

// Whether the process's first thread blocks this signal, and not all, as at the process's start.
bool blocks_alone(pid_t pid, int signal) {
  const std::string status = read_file(cat("/proc/", pid, "/status"));
  const size_t at = status.find("SigBlk:");
  const uint64_t blocked =
      at == std::string::npos ? 0 : std::stoull(status.substr(at + 7), nullptr, 16);
  const auto has = [&](int number) {
    return (blocked >> (number - 1) & 1) != 0;
  };
  return has(signal) && !has(SIGTERM);
}

// Nobody serves yet, so the second host has not joined.
TEST_F(Agents, ASignalBeforeAHostHasJoinedWaitsToo) {
  auto b = node(1, shell(kHear));
  const Deadline deadline(std::chrono::seconds(60));
  while (!blocks_alone(b->pid(), SIGUSR1) && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(b->pid(), SIGUSR1);
  auto a = node(0, shell(kHear));
  EXPECT_THAT(a->finish().out, HasSubstr("heard 0"));
  const Ran second = b->finish();
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("heard 1"));
}

// Leases would refuse the second where both have one runtime folder, as two containers have not.
TEST_F(Agents, OneGpuIsNotTwoHosts) {
  auto a = with_gpu(0, {"--nnodes", "2", "--node-rank", "0"}, {"true"});
  auto b = with_gpu(0, {"--nnodes", "2", "--node-rank", "1"}, {"true"});
  for (Program* agent : {a.get(), b.get()}) {
    const Ran ran = agent->finish();
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err,
                AllOf(HasSubstr("are on one machine: both have GPU-00000000-"),
                      HasSubstr("start one agent on each machine")));
  }
}

// It keeps its ranks: a second agent of its machine is turned away before they are disturbed.
TEST_F(Agents, ASecondAgentOfAMachineDisturbsNoElasticJob) {
  const Args flags = {"--nnodes",
                      "1:2",
                      "--rdzv-backend",
                      "c10d",
                      "--rdzv-conf",
                      cat("last_call_timeout=0,", kPatient)};
  const Args words = shell("echo up $MUSTER_ATTEMPT; until [ -e seen ]; do sleep 0.02; done");
  auto a = with_gpu(0, flags, words);
  a->read_until("up 0");
  auto b = with_gpu(0, flags, words);
  const Ran second = b->finish();
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err,
              AllOf(HasSubstr("are on one machine: both have GPU-00000000-"),
                    HasSubstr("of this machine serves already"),
                    HasSubstr("--rdzv-id")));
  write_file(folder_.path() + "/seen", "");
  const Ran first = a->finish();
  EXPECT_EQ(first.code, 0);
  EXPECT_THAT(first.out, Not(HasSubstr("up 1")));
}

// Its agents were killed, and its name is the next one's, as of mpirun in a container that is
// started again.
TEST_F(Agents, AFileOfAJobThatWasKilledHoldsUpNoOther) {
  const auto agent = [&](int rank, const Args& program) {
    ProgramSettings of_host = settings();
    of_host.environment["PMIX_NAMESPACE"] = "77";
    of_host.environment["OMPI_COMM_WORLD_SIZE"] = "2";
    of_host.environment["OMPI_COMM_WORLD_RANK"] = cat(rank);
    of_host.environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
    of_host.environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
    of_host.environment["OMPI_MCA_initial_wdir"] = folder_.path();
    Args args = {"run", "-n", "1"};
    args.insert(args.end(), program.begin(), program.end());
    return std::make_unique<Program>(args, folder_, of_host);
  };
  const std::string file = folder_.path() + "/.muster-mpirun-77-agents";
  auto killed = agent(0, {"true"});
  ASSERT_TRUE(comes(file));
  ::kill(killed->pid(), SIGKILL);
  killed->finish();
  ASSERT_TRUE(std::filesystem::exists(file));
  auto b = agent(1, {"true"});
  auto a = agent(0, {"true"});
  EXPECT_EQ(a->finish().code, 0);
  EXPECT_EQ(b->finish().code, 0);
  EXPECT_FALSE(std::filesystem::exists(file));
}

// Whichever of its threads cannot be made, this is an error and no abort. With room for all of them
// the agent waits for another host.
TEST_F(Agents, AThreadThatCannotBeIsNamedWithItsLimit) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "another user is needed, who has no process";
  const std::string arguments =
      cat("run --no-auth --nnodes 2 --node-rank 0 --rdzv-conf join_timeout=1 --rdzv-endpoint ",
          endpoint(),
          " -n 1 true");
  constexpr int kMostThreads = 30;
  int limit = 1;
  for (; limit <= kMostThreads; ++limit) {
    const Ran ran = with_few_processes(limit, 2, arguments, folder_).finish();
    EXPECT_EQ(ran.code, 1) << limit << ": " << ran.err;
    if (testing::Value(ran.err, HasSubstr("expected 2 hosts")))
      break;
    EXPECT_THAT(ran.err, HasSubstr("ulimit -u")) << limit;
  }
  EXPECT_GT(limit, 2) << "no thread was refused";
  EXPECT_LE(limit, kMostThreads) << "its threads were never enough";
}

TEST_F(Agents, AProgramThatIsMissingOnOneHostEndsTheJob) {
  auto a = node(0, shell("sleep 60"));
  auto b = node(1, {"./not-there"});
  EXPECT_EQ(b->finish().code, 127);
  ::kill(a->pid(), SIGTERM);
  a->finish();
}

TEST_F(Agents, DifferentProgramsAreOneHosts) {
  auto a = node(0, {"true", ":", "-n", "1", "true"});
  const Ran ran = a->finish();
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("expected one program where several hosts take part"));
}

TEST_F(Agents, TheTimeLimitIsTheWholeJobs) {
  // Where the second host did not come in time, it gets more.
  for (const char* limit : {"1", "5", "25"}) {
    auto b = node(1, shell("echo up; sleep 60"));
    auto a = node(0, shell("echo up; sleep 60"), {"--timeout", limit});
    const Ran first = a->finish();
    EXPECT_EQ(first.code, 124);
    if (first.out.empty() && limit != std::string("25")) {
      ::kill(b->pid(), SIGKILL);
      b->finish();
      continue;
    }
    EXPECT_THAT(first.out, HasSubstr("up"));
    EXPECT_EQ(b->finish().code, 124);
    break;
  }
}

}  // namespace
}  // namespace muster
