#include "muster/launch/failure_meaning.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

RankExit that_said(const std::string& line) {
  RankExit exit;
  exit.exit_code = 1;
  exit.master_port = 29511;
  exit.last_lines = {line};
  return exit;
}

// As PyTorch 2.15 writes it, with libuv and without.
TEST(FailureMeaning, OfAPortThatPyTorchFindsInUse) {
  for (const char* line : {"torch.distributed.DistNetworkError: The server socket has failed to "
                           "listen on any local network "
                           "address. port: 29511, useIpv6: false, code: -98, name: EADDRINUSE, "
                           "message: address already in use",
                           "[W socket.cpp:525] [c10d] The server socket has failed to bind to "
                           "[::]:29511 (errno: 98 - Address "
                           "already in use)."}) {
    EXPECT_EQ(failure_meaning(that_said(line)),
              "a process listens at MASTER_PORT 29511 already: rank 0 may, once; that muster holds "
              "the port is "
              "not in PyTorch's way")
        << line;
  }
}

TEST(FailureMeaning, OfAScriptThatStartsItsOwnProcesses) {
  RankExit exit = that_said(
      "torch.distributed.DistNetworkError: The server socket has failed to "
      "listen on any local network address. port: 29511, useIpv6: false, "
      "code: -98, name: EADDRINUSE, message: address already in use");
  exit.last_lines.insert(exit.last_lines.begin(),
                         "  File \"/venv/torch/multiprocessing/spawn.py\", line 89, in _wrap");
  EXPECT_THAT(failure_meaning(exit), HasSubstr("replace mp.spawn(f, ...) by"));
}

TEST(FailureMeaning, OfThePortThatMusterHolds) {
  EXPECT_THAT(
      failure_meaning(
          that_said("OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', "
                    "29511): address already in use")),
      StartsWith(
          "a process listens at MASTER_PORT 29511 already, or this one has not set SO_REUSEADDR: "
          "muster holds MASTER_PORT 29511 for rank 0"));
}

TEST(FailureMeaning, OfOtherPortsInUse) {
  EXPECT_THAT(failure_meaning(that_said("OSError: ('127.0.0.1', 8080): address already in use")),
              StartsWith("another process uses port 8080: "));
  const std::string unnamed =
      failure_meaning(that_said("OSError: [Errno 98] Address already in use"));
  EXPECT_THAT(unnamed, HasSubstr("muster holds MASTER_PORT 29511 for rank 0"));
  EXPECT_THAT(unnamed, HasSubstr("any other port, another process has"));
  EXPECT_THAT(failure_meaning(that_said("bind: Address already in use")),
              Not(HasSubstr("--master-port")));
}

TEST(AccountByWords, OfALostRank) {
  for (const char* line :
       {"[/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711",
        "[rank1]: torch.distributed.DistBackendError: ncclRemoteError: A call failed "
        "possibly due to a network error",
        "RuntimeError: all_reduce #3 on rank 0 of 4: rank 1 (process 7) ended; the first "
        "rank that failed has the cause"}) {
    RankExit exit = that_said(line);
    exit.last_lines.emplace_back("terminate called without an active exception");
    EXPECT_EQ(account_by_words(exit), Account::lost_peer) << line;
  }
}

TEST(AccountByWords, OfAConnectionItIsTheLastLineThatCounts) {
  EXPECT_EQ(
      account_by_words(that_said("ConnectionResetError: [Errno 104] Connection reset by peer")),
      Account::connection);
  RankExit tried_again = that_said("download: Connection reset by peer; trying again");
  tried_again.last_lines.emplace_back("ValueError: bad batch");
  EXPECT_EQ(account_by_words(tried_again), Account::own_error);
}

TEST(AccountByWords, OfASignalThatPythonNamesItIsNone) {
  RankExit aborted{.signal = SIGABRT};
  aborted.message = "Fatal Python error: Aborted";
  aborted.last_lines = {
      "Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):"};
  EXPECT_EQ(account_by_words(aborted), Account::none);
}

TEST(AccountByWords, OfAnErrorOfPython) {
  EXPECT_EQ(account_by_words(that_said("[rank3]: ValueError: bad batch")), Account::own_error);
  EXPECT_EQ(account_by_words(that_said("torch.cuda.OutOfMemoryError: full")), Account::own_error);
  EXPECT_EQ(account_by_words(that_said("the peer is gone, Error")), Account::none);
  EXPECT_EQ(account_by_words(RankExit{.exit_code = 1}), Account::none);
}

}  // namespace
}  // namespace muster
