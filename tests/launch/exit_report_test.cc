#include "muster/launch/exit_report.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

RankExit ended(int rank, int exit_code, int signal = 0, int sent_signal = 0) {
  RankExit exit;
  exit.rank = exit.local_rank = rank;
  exit.host = "box";
  exit.device = "cpu:0";
  exit.pid = 100 + rank;
  exit.exit_code = exit_code;
  exit.signal = signal;
  exit.sent_signal = sent_signal;
  exit.cause = describe_end(exit);
  return exit;
}

FailureContext context() {
  FailureContext context;
  context.run_id = "job1";
  context.run_dir = "/runs/job1";
  context.time = "2026-01-02T03:04:05+0000";
  return context;
}

TEST(ErrorFile, TorchrunsTwoFormsAndPlainText) {
  const ScratchFolder folder;
  const auto read = [&](const std::string& text) {
    return read_error_file(folder.write("error.json", text));
  };
  const auto full =
      read(R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback",
                            "timestamp": "1"}}})");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->message, "ValueError: bad");
  EXPECT_EQ(full->stack, "Traceback");
  EXPECT_EQ(read(R"({"message": "short"})")->message, "short");
  EXPECT_EQ(read("not JSON")->message, "not JSON");
  EXPECT_EQ(read(R"({"message": 7})")->message, R"({"message": 7})");
  EXPECT_EQ(read(R"({"message": {"message": 7, "extraInfo": 3}})")->message, "");
  EXPECT_FALSE(read(" \n"));
  EXPECT_FALSE(read_error_file(folder.path() + "/none"));
}

TEST(ErrorFile, HasFactsBesideWords) {
  const ScratchFolder folder;
  const auto read = [&](const std::string& facts) {
    return read_error_file(folder.write(
        "error.json",
        cat(R"({"message": {"message": "m", "extraInfo": {"muster": )", facts, "}}}")));
  };
  const auto lost = read(R"({"code": "peer_failed", "lost_ranks": [3, 1], "left_early": true})");
  EXPECT_EQ(lost->facts.code, "peer_failed");
  EXPECT_THAT(lost->facts.lost_ranks, testing::ElementsAre(3, 1));
  EXPECT_TRUE(lost->facts.left_early);
  const auto killed = read(R"({"signal": "SIGSEGV", "said": ["head", "  #0 f"]})");
  EXPECT_EQ(killed->facts.signal, "SIGSEGV");
  EXPECT_THAT(killed->facts.said, testing::ElementsAre("head", "  #0 f"));
  for (const char* wrong :
       {"7",
        "[]",
        R"({"code": 7, "lost_ranks": 7, "left_early": 7, "signal": [], "said": 3})",
        R"({"lost_ranks": ["x", -1, 99999999999, 1.5], "said": [7]})"}) {
    const auto facts = read(wrong)->facts;
    EXPECT_TRUE(facts.code.empty() && facts.lost_ranks.empty() && facts.said.empty() &&
                !facts.left_early)
        << wrong;
  }
}

TEST(ErrorFile, OfALongOneTheBeginningAndOfADeepOneTheText) {
  const ScratchFolder folder;
  const std::string path =
      folder.write("long.json", "{\"message\": \"" + std::string(3'000'000, 'x') + "\"}");
  EXPECT_LT(read_error_file(path)->message.size(), 3'000U);
  EXPECT_THAT(read_error_file(path)->message, HasSubstr(path));
  const std::string deep = std::string(400'000, '[');
  EXPECT_EQ(read_error_file(folder.write("deep.json", deep))->message, deep);
}

TEST(FailureCard, LeavesTheTerminalAlone) {
  std::vector<RankExit> exits = {ended(0, 1)};
  exits[0].message = "no\x1b[2Jthing";
  EXPECT_THAT(failure_card(exits, context()), HasSubstr("  error     no?[2Jthing\n"));
  exits[0].message.clear();
  exits[0].last_lines = {"\x1b[31mred\x1b[0m \x1b[1A\xc2\x9bup\r"};
  EXPECT_THAT(failure_card(exits, context()), HasSubstr("    | red ?[1A??up?\n"));
}

TEST(FailureCard, SaysWhatWellKnownFailuresMean) {
  std::vector<RankExit> exits = {ended(0, 1)};
  EXPECT_THAT(failure_card(exits, context()), Not(HasSubstr("meaning")));
  exits[0].last_lines = {"RuntimeError: [..] Connection closed by peer [127.0.0.1]"};
  EXPECT_THAT(failure_card(exits, context()), HasSubstr("  meaning   it lost another rank"));
  exits[0].message = "CUDA out of memory. Tried to allocate 2.00 GiB";
  EXPECT_THAT(failure_card(exits, context()), HasSubstr("  meaning   the GPU's memory is full"));
  EXPECT_THAT(failure_json(exits, context()), HasSubstr("\"meaning\": \"the GPU's memory is full"));
}

TEST(FailureCard, NamesTheFirstAndTheConsequences) {
  std::vector<RankExit> exits = {
      ended(2, 0), ended(1, 3), ended(0, 0, SIGTERM, SIGTERM), ended(3, 0, SIGTERM, SIGTERM)};
  exits[1].last_lines = {"something", "went wrong"};
  const std::string card = failure_card(exits, context());
  EXPECT_THAT(card, HasSubstr("[muster] rank 1 failed first: exit code 3\n"));
  EXPECT_THAT(card, HasSubstr("host box, cpu:0, pid 101"));
  EXPECT_THAT(card, HasSubstr("    | something\n    | went wrong\n"));
  EXPECT_THAT(card, HasSubstr("rank 2: exit code 0\n"));
  EXPECT_THAT(card, HasSubstr("ranks 0, 3: ended by muster (SIGTERM)\n"));
  EXPECT_THAT(card, HasSubstr("/runs/job1/failure.json"));
}

// Who failed by its deadline is not who stayed away.
TEST(FailureCard, SaysWhichRankLeftTheOthersPath) {
  const std::vector<RankExit> exits = {ended(1, 1), ended(2, 0, SIGTERM, SIGTERM)};
  FailureContext apart = context();
  apart.divergences = {{.group = "world",
                        .sequence = 2,
                        .call = "all_reduce #2 f32[4]",
                        .ranks = {2},
                        .others = {0, 1},
                        .where = "it was in tokenize"}};
  EXPECT_THAT(
      failure_card(exits, apart),
      HasSubstr(
          "  apart     rank 2 left the common path first: it never began all_reduce #2 f32[4] of "
          "world, which rank(s) 0, 1 began; it was in tokenize\n  then"));
  const auto json = nlohmann::json::parse(failure_json(exits, apart));
  EXPECT_EQ(json["divergences"][0]["kind"], "never_began");
  EXPECT_EQ(json["divergences"][0]["ranks"], nlohmann::json({2}));
  apart.divergences[0].ranks = {1};
  EXPECT_THAT(failure_card(exits, apart), Not(HasSubstr("apart"))) << "the card is about that rank";
}

// A host that came or left makes another attempt, which no budget counts.
TEST(FailureCard, NamesGpusThatHaveGoneBadAndWhatHasFailedBefore) {
  FailureContext now = context();
  now.attempt = 2;
  now.bad_gpus = {{.index = {1}, .uuid = {"GPU-b"}, .what = "GPU is lost"}};
  now.attempts = {{.attempt = 0, .exits = {ended(1, 0, SIGKILL), ended(0, 0, SIGTERM, SIGTERM)}},
                  {.attempt = 1, .in_place = true, .exits = {ended(2, 3)}},
                  {.attempt = 2, .exits = {ended(0, 1)}}};
  EXPECT_THAT(failure_card({ended(0, 1)}, now),
              HasSubstr("  GPU       GPU 1 (GPU-b): GPU is lost\n"));
  const auto json = nlohmann::json::parse(failure_json({ended(0, 1)}, now));
  EXPECT_EQ(json["bad_gpus"][0]["uuid"], "GPU-b");
  ASSERT_EQ(json["earlier"].size(), 2U);
  EXPECT_EQ(json["earlier"][0]["then"], "replaced in place");
  ASSERT_EQ(json["earlier"][0]["failed"].size(), 1U) << "not what muster ended itself";
  EXPECT_EQ(json["earlier"][0]["failed"][0]["rank"], 1);
  EXPECT_EQ(json["earlier"][1]["then"], "all ranks started again");
  EXPECT_EQ(json["earlier"][1]["failed"][0]["cause"], "exit code 3");
}

TEST(FailureCard, RestartsAreNotAttempts) {
  FailureContext elastic = context();
  elastic.attempt = 4;
  elastic.restarts = 1;
  elastic.max_restarts = 2;
  const std::vector<RankExit> exits = {ended(0, 1)};
  EXPECT_THAT(failure_card(exits, elastic), HasSubstr("after its start, restart 1 of 2\n"));
  EXPECT_THAT(failure_json(exits, elastic), HasSubstr("\"attempt\": 4"));
}

TEST(FailureCard, PrefersTheReportedException) {
  std::vector<RankExit> exits = {ended(0, 1)};
  exits[0].message = "RuntimeError: no";
  exits[0].stack = "Traceback:\n  File x\nRuntimeError: no\n";
  exits[0].last_lines = {"noise"};
  const std::string card = failure_card(exits, context());
  EXPECT_THAT(card, HasSubstr("error     RuntimeError: no\n"));
  EXPECT_THAT(card, HasSubstr("    |   File x\n"));
  EXPECT_THAT(card, Not(HasSubstr("noise")));
}

TEST(FailureCard, SaysNothingTwice) {
  std::vector<RankExit> exits = {ended(0, 1)};
  exits[0].last_lines = {"loading", "the disk is full"};
  exits[0].lines_in_sight = true;
  EXPECT_THAT(failure_card(exits, context()), Not(HasSubstr("disk is full")))
      << "it stands right above";
  EXPECT_THAT(failure_card(exits, context()),
              HasSubstr("its last lines of standard error are above"));

  exits[0].lines_in_sight = false;
  exits[0].message = "io: the disk is full";
  exits[0].last_lines = {"loading", "[rank 0] error: io: the disk is full"};
  const std::string card = failure_card(exits, context());
  EXPECT_THAT(card, HasSubstr("  error     io: the disk is full\n"));
  EXPECT_THAT(card, HasSubstr("    | loading\n"));
  EXPECT_THAT(card, Not(HasSubstr("[rank 0] error")));

  exits[0].stack = "Traceback:\n  File x\nio: the disk is full";
  exits[0].last_lines = {"Traceback:", "  File x", "io: the disk is full"};
  exits[0].lines_in_sight = true;
  EXPECT_THAT(failure_card(exits, context()), Not(HasSubstr("Traceback")));
}

TEST(FailureCard, BeginsAStackOfCppWithTheInnermostCalls) {
  std::vector<RankExit> exits = {ended(0, 1)};
  for (int i = 0; i < 50; ++i)
    exits[0].stack += cat("  #", i, " f", i, "\n");
  EXPECT_THAT(failure_card(exits, context()), HasSubstr("#0 f0\n"));
  EXPECT_THAT(failure_card(exits, context()), Not(HasSubstr("#49 f49")));
}

TEST(FailureCard, HasAllOfAMessageBesideAStackOfCpp) {
  std::vector<RankExit> exits = {ended(0, 1)};
  exits[0].message =
      "torch::jit::Error: the following operation failed\nRuntimeError: shapes differ";
  exits[0].stack = "  #0 f\n  #1 main\n";
  EXPECT_THAT(failure_card(exits, context()),
              HasSubstr("    | RuntimeError: shapes differ\n  stack\n    |   #0 f\n"));
}

TEST(FailureCard, HasTheLastLinesBesideTheStackOfASignal) {
  std::vector<RankExit> exits = {ended(0, 0, SIGABRT)};
  exits[0].stack = "  #0 abort\n  #1 main";
  exits[0].last_lines = {"train: main.cc:7: Assertion `n > 0' failed."};
  EXPECT_THAT(failure_card(exits, context()),
              HasSubstr("Assertion `n > 0' failed.\n  stack\n    |   #0 abort\n"));
}

TEST(FailureCard, NamesTheErrorsOfTheOthers) {
  std::vector<RankExit> exits = {
      ended(1, 1), ended(0, 1), ended(2, 1), ended(3, 0, SIGTERM, SIGTERM)};
  exits[0].message = exits[1].message = "io: no such file";
  exits[2].message = "io: the disk is full\nwith more";
  const std::string card = failure_card(exits, context());
  EXPECT_THAT(card, HasSubstr("rank 0: exit code 1, of the same error\n"));
  EXPECT_THAT(card, HasSubstr("rank 2: exit code 1, io: the disk is full\n"));
  EXPECT_THAT(card, HasSubstr("rank 3: ended by muster (SIGTERM)\n"));
}

TEST(FailureCard, NamesARankThatEndedWellWhileOthersWaitedForIt) {
  std::vector<RankExit> exits = {
      ended(2, 0), ended(1, 0), ended(0, 1), ended(3, 0, SIGTERM, SIGTERM)};
  exits[2].message =
      "peer_failed: all_reduce #3 on rank 0 of 4: rank 1 (process 101) ended; see there";
  exits[2].facts = {.code = "peer_failed", .lost_ranks = {1}};
  const std::string card = failure_card(exits, context());
  EXPECT_THAT(card,
              HasSubstr("[muster] rank 1 ended first: exit code 0, while others waited for it\n"));
  EXPECT_THAT(card, HasSubstr("  error     rank 0: peer_failed: all_reduce #3"));
  EXPECT_THAT(card, HasSubstr("rank 0: exit code 1\n")) << "the error is told once";
  EXPECT_EQ(first_failure(exits)->shell_code(), 1) << "the job failed";
  const auto json = nlohmann::json::parse(failure_json(exits, context()));
  EXPECT_EQ(json["first"]["rank"], 1);
  EXPECT_EQ(json["exit_code"], 1);

  exits[2].message = "RuntimeError: it lost another";
  exits[2].facts = {};
  exits[2].last_lines = {
      "[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711"};
  EXPECT_THAT(failure_card(exits, context()), HasSubstr("rank 2 ended first"))
      << "the first that did";
  exits[0].at = exits[1].at = exits[2].at + std::chrono::seconds(1);
  EXPECT_THAT(failure_card(exits, context()),
              HasSubstr("rank 0 failed of the loss of another rank: exit code 1"))
      << "nobody had left";
  exits[0].at = exits[1].at = exits[2].at;
  exits[2].last_lines = {"ConnectionResetError: [Errno 104] Connection reset by peer"};
  EXPECT_THAT(failure_card(exits, context()), HasSubstr("rank 0 failed first")) << "of a download";
}

TEST(FailureCard, NamesARankThatReturnedEarlyHoweverItEnded) {
  std::vector<RankExit> exits = {ended(0, 1), ended(1, 0, SIGTERM, SIGTERM)};
  exits[0].message = "peer_failed: collective #3: rank 1 left the group";
  exits[0].facts.code = "peer_failed";
  exits[1].message =
      "invalid_argument: rank 1 returned from its function while others did not: shutdown #3";
  exits[1].facts = {.code = "invalid_argument", .left_early = true};
  const std::string card = failure_card(exits, context());
  EXPECT_THAT(card,
              HasSubstr("rank 1 failed first: it returned from its function, while others waited"));
  EXPECT_THAT(card, HasSubstr("  error     invalid_argument: rank 1 returned"));
  EXPECT_THAT(card, HasSubstr("rank 0: exit code 1, peer_failed: collective #3"));
  EXPECT_EQ(first_failure(exits)->shell_code(), 1);
}

TEST(FailureCard, SaysSignalsInWords) {
  EXPECT_THAT(ended(0, 0, SIGSEGV).cause, HasSubstr("killed by SIGSEGV (segmentation fault)"));
  EXPECT_THAT(ended(0, 0, SIGKILL).cause, HasSubstr("memory"));
  EXPECT_THAT(ended(0, 0, SIGUSR1).cause, HasSubstr("or to muster, which passes it on"));
  EXPECT_EQ(ended(0, 5, 0, SIGTERM).cause, "exit code 5 after muster's SIGTERM");
}

// Rank 0 says that it lost rank 1, which muster ended when it had waited for a cause.
TEST(FailureCard, NamesNoCauseThatIsNotKnown) {
  std::vector<RankExit> exits = {ended(0, 1), ended(1, 0, SIGTERM, SIGTERM)};
  exits[0].message = "peer_failed: all_reduce #3";
  exits[0].facts = {.code = "peer_failed", .lost_ranks = {1}};
  const std::string card = failure_card(exits, context());
  EXPECT_THAT(card, HasSubstr("[muster] rank 0 failed of the loss of another rank: exit code 1\n"));
  EXPECT_THAT(
      card,
      HasSubstr(
          "  cause     not known: it lost rank 1, and no failure of another kind had come when "
          "muster ended rank 1; see what these did\n"));
  EXPECT_THAT(card, Not(HasSubstr("failed first")));
  EXPECT_THAT(failure_json(exits, context()), HasSubstr("\"doubt\": \"not known: it lost rank 1"));
}

TEST(FailureCard, SaysWhoEndedAlikeInTheSameMoment) {
  std::vector<RankExit> exits = {
      ended(2, 1), ended(0, 1), ended(3, 1), ended(1, 0, SIGTERM, SIGTERM)};
  EXPECT_THAT(failure_card(exits, context()),
              HasSubstr("  cause     not certain: ranks 0, 3 ended alike in "
                        "the same moment, and said no more; or they lost "
                        "rank 1, which muster ended then\n"));
  exits[0].message = exits[1].message = exits[2].message = "ValueError: bad batch";
  EXPECT_THAT(failure_card(exits, context()), Not(HasSubstr("not certain")));
  EXPECT_THAT(
      failure_card({ended(1, 0, SIGABRT), ended(0, 3)}, context()),
      HasSubstr("  cause     not certain: rank 0 ended in the same moment, and said no more"));
}

TEST(FirstFailure, SkipsThoseThatMusterEnded) {
  const std::vector<RankExit> stopped = {ended(0, 0, SIGTERM, SIGTERM), ended(1, 1, 0, SIGTERM)};
  EXPECT_EQ(first_failure(stopped), nullptr);
  EXPECT_EQ(failure_card(stopped, context()), "");
  const std::vector<RankExit> failed = {ended(0, 0), ended(4, 0, SIGABRT), ended(1, 1)};
  EXPECT_EQ(first_failure(failed)->rank, 4);
  EXPECT_EQ(first_failure(failed)->shell_code(), 128 + SIGABRT);
}

TEST(FirstFailure, IsNoneThatMusterKilledWhateverItReported) {
  std::vector<RankExit> exits = {
      ended(1, 1), ended(0, 0, SIGTERM, SIGTERM), ended(2, 1, 0, SIGTERM)};
  exits[0].message = "peer_failed: all_reduce #3";
  exits[0].facts.code = "peer_failed";
  exits[1].message = "SignalException: got SIGTERM";
  EXPECT_EQ(first_failure(exits)->rank, 1);
  exits[2].message = "ValueError: the cause";
  EXPECT_EQ(first_failure(exits)->rank, 2) << "it was on its way out when it was asked to end";
}

TEST(FailureCard, NamesNoReportThatCouldNotBeWritten) {
  FailureContext without = context();
  without.has_report = false;
  EXPECT_THAT(failure_card({ended(0, 1)}, without), Not(HasSubstr("failure.json")));
}

TEST(FailureJson, HoldsEverythingWhateverWasPrinted) {
  std::vector<RankExit> exits = {ended(1, 3), ended(0, 0, SIGTERM, SIGTERM)};
  exits[0].last_lines = {"\xff\xfe not UTF-8"};
  const auto json = nlohmann::json::parse(failure_json(exits, context()));
  EXPECT_EQ(json["schema"], "muster.failure/1");
  EXPECT_EQ(json["exit_code"], 3);
  EXPECT_EQ(json["first"]["rank"], 1);
  EXPECT_EQ(json["first"]["ended_by"], "itself");
  EXPECT_TRUE(json["first"]["signal"].is_null());
  EXPECT_EQ(json["others"][0]["signal"], "SIGTERM");
  EXPECT_EQ(json["others"][0]["ended_by"], "muster");
}

}  // namespace
}  // namespace muster
