#include "muster/tasks/report/results.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/tasks/report/results_table.h"

namespace muster {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  std::vector<Task> tasks;
  std::vector<TaskResult> results;
};

Outcome three_tasks() {
  Outcome outcome;
  outcome.tasks = {{.name = "lr=0.1", .argv = {"./train", "0.1"}, .parameters = {{"lr", "0.1"}}},
                   {.name = "lr=1e-4", .argv = {"./train", "1e-4"}, .parameters = {{"lr", "1e-4"}}},
                   {.name = "report", .argv = {"./report"}}};
  const TaskAttempt first{.host = "n0", .gpu_indices = {0, 2}, .began = 1, .ended = 3.5};
  const TaskAttempt failed{
      .host = "n0", .cpus = {0, 1, 2}, .began = 1, .ended = 1.25, .exit_code = 3};
  TaskAttempt again{
      .attempt = 1, .host = "n0", .gpu_indices = {1}, .gpu_fraction = 0.5, .began = 2};
  again.ended = 92;
  again.signal = 9;
  outcome.results = {{.state = TaskState::done,
                      .attempts = {first},
                      .last_json = R"({"accuracy": 0.98125, "epochs": 3})"},
                     {.state = TaskState::failed,
                      .attempts = {failed, again},
                      .last_json = R"({"accuracy": 0.5, "note": "a, \"b\"\nc"})",
                      .reason = "SIGKILL"},
                     {.state = TaskState::skipped, .reason = "after lr=1e-4, which failed"}};
  return outcome;
}

TEST(Results, TheTableThatPeopleRead) {
  const Outcome outcome = three_tasks();
  EXPECT_EQ(
      results_table(outcome.tasks, outcome.results),
      "task       lr  state             restarts  devices       time  accuracy  epochs  note\n"
      "lr=0.1    0.1  done                     0  GPU 0,2       2.5s   0.98125       3\n"
      "lr=1e-4  1e-4  failed (SIGKILL)         1  GPU 1 (0.5)  1m30s   0.50000          a, "
      "\"b\"?c\n"
      "report         skipped\n");
}

TEST(Results, ManyFieldsAreLeftOutOfTheTableAndSaid) {
  nlohmann::ordered_json line;
  for (int i = 0; i < 20; ++i)
    line["f" + std::to_string(i)] = i;
  const std::string table =
      results_table({{.name = "a"}}, {{.state = TaskState::done, .last_json = line.dump()}});
  EXPECT_THAT(table, HasSubstr("f11"));
  EXPECT_THAT(table, EndsWith("(8 more columns are in the JSON and the CSV)\n"));
}

TEST(Results, SeveralHostsAreToldApart) {
  const std::string table = results_table(
      {{.name = "a"}, {.name = "b"}},
      {{.state = TaskState::running, .attempts = {{.host = "n0", .gpu_indices = {0}}}},
       {.state = TaskState::running, .attempts = {{.host = "n1"}}}});
  EXPECT_THAT(table, HasSubstr("n0: GPU 0"));
  EXPECT_THAT(table, HasSubstr("n1: CPU"));
}

TEST(Results, JsonHasEveryAttempt) {
  const Outcome outcome = three_tasks();
  const auto json = nlohmann::json::parse(results_json(outcome.tasks, outcome.results));
  EXPECT_EQ(json["schema"], "muster.tasks/1");
  ASSERT_EQ(json["tasks"].size(), 3U);
  const auto& failed = json["tasks"][1];
  EXPECT_EQ(failed["parameters"]["lr"], "1e-4");
  EXPECT_EQ(failed["state"], "failed");
  EXPECT_EQ(failed["result"]["accuracy"], 0.5);
  ASSERT_EQ(failed["attempts"].size(), 2U);
  EXPECT_EQ(failed["attempts"][0]["exit_code"], 3);
  EXPECT_EQ(failed["attempts"][1]["signal"], 9);
  EXPECT_TRUE(failed["attempts"][1]["exit_code"].is_null()) << "it has none";
  EXPECT_EQ(failed["attempts"][0]["gpu_fraction"], 0) << "it had no GPU";
  EXPECT_EQ(failed["attempts"][1]["gpu_fraction"], 0.5);
  EXPECT_EQ(json["tasks"][0]["attempts"][0]["gpus"], nlohmann::json({0, 2}));
  EXPECT_TRUE(json["tasks"][2]["result"].is_null());
  EXPECT_EQ(json["tasks"][2]["reason"], "after lr=1e-4, which failed");
}

// How an attempt ended that died with its run, or has not ended, is not known.
TEST(Results, WhatIsNotKnownOfAnEndIsNotSaid) {
  const std::vector<TaskResult> results = {
      {.attempts = {{.began = 1, .ended = 2.5, .lost = true}}},
      {.state = TaskState::running, .attempts = {{.began = 1}}},
  };
  const auto json = nlohmann::json::parse(results_json({{.name = "a"}, {.name = "b"}}, results));
  const auto& lost = json["tasks"][0]["attempts"][0];
  EXPECT_EQ(lost["ended"], 2.5);
  EXPECT_EQ(lost["lost"], true);
  EXPECT_TRUE(lost["exit_code"].is_null() && lost["signal"].is_null());
  const auto& running = json["tasks"][1]["attempts"][0];
  EXPECT_EQ(running["lost"], false);
  EXPECT_TRUE(running["exit_code"].is_null() && running["signal"].is_null());
  EXPECT_THAT(results_csv({{.name = "a"}, {.name = "b"}}, results),
              HasSubstr("a,waiting,,0,,CPU,1.5,,,\r\n"));
}

TEST(Results, JsonOfWhatIsNoUtf8) {
  const auto json =
      nlohmann::json::parse(results_json({{.name = "a\xff", .argv = {"\xfe"}}}, {TaskResult{}}));
  EXPECT_EQ(json["tasks"][0]["name"], "a\xef\xbf\xbd");
}

TEST(Results, CsvIsRfc4180) {
  const Outcome outcome = three_tasks();
  EXPECT_EQ(
      results_csv(outcome.tasks, outcome.results),
      "name,lr,state,reason,restarts,host,devices,seconds,exit_code,signal,timed_out,accuracy,"
      "epochs,note\r\n"
      "lr=0.1,0.1,done,,0,n0,\"GPU 0,2\",2.5,0,0,false,0.98125,3,\r\n"
      "lr=1e-4,1e-4,failed,SIGKILL,1,n0,GPU 1 (0.5),90.0,,9,false,0.5,,\"a, \"\"b\"\"\nc\"\r\n"
      "report,,skipped,\"after lr=1e-4, which failed\",,,,,,,,,,\r\n");
}

TEST(Results, CsvColumnsOfOneNameAreToldApart) {
  const std::string csv =
      results_csv({{.name = "a", .parameters = {{"lr", "1"}, {"state", "x"}}}},
                  {{.state = TaskState::done, .last_json = R"({"lr": 2, "state": "y"})"}});
  EXPECT_THAT(csv, StartsWith("name,lr,parameter.state,state,reason,"));
  EXPECT_THAT(csv, HasSubstr(",timed_out,result.lr,result.state\r\na,1,x,done,"));
  EXPECT_THAT(csv, EndsWith(",2,y\r\n"));
}

TEST(Results, OneForEachTask) {
  EXPECT_THROW(results_table({{.name = "a"}}, {}), Error);
  EXPECT_THROW(results_json({{.name = "a"}}, {}), Error);
  EXPECT_THROW(results_csv({{.name = "a"}}, {}), Error);
}

}  // namespace
}  // namespace muster
