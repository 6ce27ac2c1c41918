// Strangers and ranks at MASTER_PORT of a real job.
#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "tests/cli/muster_program.h"
#include "tests/support/stranger.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Generous: it is milliseconds, and ranks that nobody ends would sleep for a thousand seconds.
constexpr std::chrono::seconds kBound{20};

int port_said_by(Program& job) {
  const std::string out = job.read_until(";");
  return static_cast<int>(
      parse_int(out.substr(out.find("port ") + 5, out.find(';') - out.find("port ") - 5))
          .value_or(0));
}

std::string refusal_at(int port, pid_t stranger) {
  return cat("MASTER_PORT ",
             port,
             ": expected a rank of this job to listen there, got process ",
             stranger,
             " (");
}

// Rank 0's program: listens and says so, and goes on until the launcher has seen it.
const char* const kListens = R"(
import os, socket, sys
if sys.argv[1:]: os.setuid(int(sys.argv[1]))
if os.environ["RANK"] == "0":
    held = socket.create_server(("", int(os.environ["MASTER_PORT"])), family=socket.AF_INET6, dualstack_ipv6=True)
seen = "watched no more"
while seen not in open("err").read(): pass
)";

TEST(MasterPort, AStrangerThatListensThereEndsTheJob) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  const ScratchFolder folder;
  Program job(sh({"-n", "2", "-q", "--run-dir", "out", "--max-restarts", "3"},
                 "[ $RANK != 0 ] || echo \"port $MASTER_PORT;\"; exec sleep 1000"),
              folder,
              {.timeout = kBound});
  const int port = port_said_by(job);
  const Stranger stranger(port);
  const Ran ran = job.finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr(refusal_at(port, stranger.pid())),
                    HasSubstr(") of uid 65534 (nobody); "),
                    HasSubstr("start again"),
                    ContainsRegex("ranks (0, 1|1, 0): ended by muster \\(SIGKILL\\)"),
                    Not(HasSubstr("restart 1")),
                    Not(HasSubstr("failed first"))));
  const auto failure = failure_of(folder);
  EXPECT_EQ(failure["exit_code"], 1);
  EXPECT_TRUE(failure["first"].is_null());
  EXPECT_THAT(failure["fault"].get<std::string>(), HasSubstr(refusal_at(port, stranger.pid())));
  EXPECT_EQ(failure["others"].size(), 2U);
}

// What the stranger has done to the rank is not the cause.
TEST(MasterPort, ARankThatFailsOfTheStrangerIsNotBlamed) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  const ScratchFolder folder;
  Program job(sh({"-n", "1", "-q", "--max-restarts", "3"},
                 "echo \"port $MASTER_PORT;\"; until [ -e go ]; do :; done; exit 98"),
              folder,
              {.timeout = kBound});
  const int port = port_said_by(job);
  // It may be seen before the rank fails, or after.
  const Stranger stranger(port);
  folder.write("go", "");
  const Ran ran = job.finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr(refusal_at(port, stranger.pid())),
                    Not(HasSubstr("failed:")),
                    Not(HasSubstr("restart 1"))));
}

TEST(MasterPort, RanksOfTheJobAreLeftInPeace) {
  const ScratchFolder folder;
  folder.write("listen.py", kListens);
  const Fd err(
      ::open((folder.path() + "/err").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  const Ran ran = muster(
      {"run", "-n", "2", "-q", "python3", "listen.py"},
      folder,
      {.environment = {{"MUSTER_LOG_LEVEL", "debug"}}, .timeout = kBound, .stderr_fd = err.get()});
  EXPECT_EQ(ran.code, 0) << read_file(folder.path() + "/err");
}

TEST(MasterPort, ARankOfAnotherUserIsOfTheJobToo) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  const ScratchFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  folder.write("listen.py", kListens);
  const Fd err(
      ::open((folder.path() + "/err").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  const Ran ran = muster(
      {"run", "-n", "2", "-q", "python3", "listen.py", "65534"},
      folder,
      {.environment = {{"MUSTER_LOG_LEVEL", "debug"}}, .timeout = kBound, .stderr_fd = err.get()});
  EXPECT_EQ(ran.code, 0) << read_file(folder.path() + "/err");
}

}  // namespace
}  // namespace muster
