#include "muster/launch/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/launch/run_recorder.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

LaunchOptions options_of_record() {
  return {.argv = {"./train", "--lr", "0.1"}, .max_restarts = 2, .run_dir = "unused"};
}

JobFacts facts_of(const ScratchFolder& folder, const std::string& run_id) {
  JobFacts facts;
  facts.run_id = run_id;
  facts.run_dir = folder.path();
  return facts;
}

TEST(RunRecordJson, ComesBackAsItWas) {
  RunRecord record;
  record.launches.push_back({.run_id = "a",
                             .argv = {"./train", "\xff<b>"},
                             .more_argvs = {{"./serve", "1"}},
                             .work_dir = "/w",
                             .host = "n0",
                             .muster_version = "0.1.0",
                             .libtorch = "2.15.0",
                             .backend = "shm",
                             .device_names = {"AMD EPYC 9R14"},
                             .pid = 7,
                             .max_restarts = 3,
                             .began = 100.5,
                             .ended = 103.25,
                             .exit_code = 9,
                             .outcome = "failed"});
  record.launches[0].attempts.push_back({.attempt = 1,
                                         .began = 101,
                                         .ended = 102,
                                         .exits = {{.rank = 3, .host = "n0", .signal = SIGKILL}}});
  record.machine = Inventory{.source = "this machine", .hosts = {{.name = "n0", .num_cores = 12}}};
  const RunRecord read = run_record_from_json(run_record_to_json(record), "run.json");
  ASSERT_EQ(read.launches.size(), 1U);
  const LaunchRecord& launch = read.launches[0];
  EXPECT_EQ(launch.argv[1], "\xef\xbf\xbd<b>") << "bytes that are no UTF-8 are replaced";
  EXPECT_EQ(launch.more_argvs, record.launches[0].more_argvs);
  EXPECT_EQ(launch.libtorch, "2.15.0");
  EXPECT_EQ(launch.backend, "shm");
  EXPECT_EQ(launch.device_names, record.launches[0].device_names);
  EXPECT_EQ(launch.ended, 103.25);
  EXPECT_EQ(launch.exit_code, 9);
  EXPECT_EQ(launch.outcome, "failed");
  ASSERT_EQ(launch.attempts.size(), 1U);
  EXPECT_EQ(launch.attempts[0].exits.at(0).signal, SIGKILL);
  EXPECT_EQ(launch.attempts[0].ended, 102);
  ASSERT_TRUE(read.machine);
  EXPECT_EQ(read.machine->hosts.at(0).num_cores, 12);
}

TEST(RunRecordJson, OtherJsonIsRefused) {
  for (const std::string text :
       {"",
        "[]",
        "{}",
        R"({"schema":"muster.run/2","launches":[]})",
        R"({"schema":"muster.run/1","launches":[{"argv":3,"attempts":[]}]})",
        R"({"schema":"muster.run/1","launches":[{"argv":[],"attempts":[{"exits":5}]}]})"}) {
    try {
      run_record_from_json(text, "x/run.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("run.json"));
      EXPECT_THAT(error.what(), Not(HasSubstr("json.exception")));
    }
  }
}

// A clock counts nanoseconds in 64 bits.
TEST(RunRecordJson, TimesThatNoClockHasAreCut) {
  const auto record = run_record_from_json(
      R"({"schema":"muster.run/1","launches":[{"argv":[],"attempts":[{"exits":[)"
      R"({"rank":0,"seconds":1e300,"unix_milliseconds":9223372036854775807},)"
      R"({"rank":1,"seconds":-1e300,"unix_milliseconds":-9223372036854775808}]}]}]})",
      "x/run.json");
  const auto& exits = record.launches.at(0).attempts.at(0).exits;
  ASSERT_EQ(exits.size(), 2U);
  EXPECT_GT(exits[0].at, std::chrono::system_clock::now());
  EXPECT_LT(exits[1].at, std::chrono::system_clock::now());
  EXPECT_GT(exits[0].after, std::chrono::hours(24));
}

TEST(RunRecorder, KeepsEveryLaunchOfAFolder) {
  const ScratchFolder folder;
  const Inventory machine{.source = "this machine", .hosts = {{.name = "n0"}}};
  {
    RunRecorder first(options_of_record(), facts_of(folder, "a"), "n0", &machine);
    first.begin_attempt(0);
    const RunRecord under_way = read_run_record(folder.path()).value();
    EXPECT_FALSE(under_way.launches.at(0).ended) << "it goes on";
    first.end_attempt({{.rank = 1, .exit_code = 3, .stack = "  #0 f"}}, "");
    first.begin_attempt(1);
    first.end_attempt({{.rank = 0}, {.rank = 1}}, "");
    EXPECT_EQ(first.finish(0, "done"), 0);
  }
  {
    const RunRecorder second(options_of_record(), facts_of(folder, "b"), "n0", &machine);
  }
  const RunRecord record = read_run_record(folder.path()).value();
  ASSERT_EQ(record.launches.size(), 2U);
  EXPECT_EQ(record.launches[0].outcome, "done");
  EXPECT_EQ(record.launches[0].attempts.size(), 2U);
  EXPECT_EQ(record.launches[0].attempts[0].exits.at(0).exit_code, 3);
  EXPECT_EQ(record.launches[0].attempts[0].exits.at(0).stack, "  #0 f") << "nothing else has it";
  EXPECT_EQ(record.launches[1].outcome, "failed") << "it ended by an exception";
}

TEST(RunRecorder, AJobThatWasHandedOverGoesOnInItsLaunch) {
  const ScratchFolder folder;
  {
    RunRecorder one(options_of_record(), facts_of(folder, "job"), "n0", nullptr);
    one.begin_attempt(0);
    one.hand_over();
  }
  RunRecorder other(options_of_record(), facts_of(folder, "job"), "n1", nullptr);
  other.begin_attempt(1);
  other.end_attempt({}, "");
  other.finish(0, "done");
  const RunRecord record = read_run_record(folder.path()).value();
  ASSERT_EQ(record.launches.size(), 1U);
  EXPECT_EQ(record.launches[0].attempts.size(), 2U);
}

TEST(RunRecorder, AnotherHostsFailureIsTheAttempts) {
  const ScratchFolder folder;
  RunRecorder record(options_of_record(), facts_of(folder, "job"), "n0", nullptr);
  record.begin_attempt(0);
  record.explain(0, "rank 5 on host n1 failed: exit code 3");
  record.end_attempt({{.rank = 0, .signal = SIGTERM, .sent_signal = SIGTERM}}, "");
  record.begin_attempt(1);
  record.finish(0, "done");
  const auto attempts = read_run_record(folder.path()).value().launches.at(0).attempts;
  EXPECT_EQ(attempts.at(0).fault, "rank 5 on host n1 failed: exit code 3");
  EXPECT_EQ(attempts.at(1).fault, "");
}

TEST(RunRecorder, AFolderThatCannotBeWrittenHoldsUpNothing) {
  JobFacts facts;
  facts.run_dir = "/no/such/folder";
  RunRecorder record(options_of_record(), facts, "n0", nullptr);
  record.begin_attempt(0);
  EXPECT_EQ(record.finish(4, "failed"), 4);
}

TEST(RunRecorder, NamesTheOutcome) {
  const RankExit bad{.rank = 1, .exit_code = 3};
  const RankExit asked{.rank = 1, .exit_code = 75};
  const RankExit ended{.rank = 1, .signal = SIGTERM, .sent_signal = SIGTERM};
  EXPECT_STREQ(outcome_of(0, {bad}), "done");
  EXPECT_STREQ(outcome_of(3, {bad}), "failed");
  EXPECT_STREQ(outcome_of(75, {asked}), "stopped");
  EXPECT_STREQ(outcome_of(124, {ended}), "time limit");
  EXPECT_STREQ(outcome_of(143, {ended}), "stopped");
  EXPECT_STREQ(outcome_of(1, {}), "failed") << "a fault of its surroundings";
}

}  // namespace
}  // namespace muster
