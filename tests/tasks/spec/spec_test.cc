#include "muster/tasks/spec/spec.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/tasks/spec/specs.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace std::chrono_literals;

std::vector<std::string> names_of(const std::vector<Task>& tasks) {
  std::vector<std::string> names;
  for (const Task& task : tasks)
    names.push_back(task.name);
  return names;
}

TEST(Spec, EveryKey) {
  const std::vector<Task> tasks = spec(R"(
[[task]]
name = "prepare"
argv = ["./prepare"]

[[task]]
name = "train"
argv = ["./train", "--epochs", 5, "a b", ""]
env = { KEY = "v", N = 4 }
dir = "/tmp"
needs = [{ gpus = 2, memory = "20GiB", model = "A100", cpus = 8 }, { cpus = 4 }]
on = "0,2"
ranks = 2
after = ["prepare"]
priority = -3
retries = 2
back_off = "10s"
time_limit = "2h"
)");
  ASSERT_EQ(tasks.size(), 2U);
  EXPECT_EQ(tasks[0].name, "prepare");
  EXPECT_THAT(tasks[0].needs,
              ElementsAre(TaskNeed{.gpus = 1}, TaskNeed{.cpus = 1, .without_gpus = true}));
  EXPECT_EQ(tasks[0].at, (SpecPosition{3, 8}));
  const Task expected{
      .name = "train",
      .argv = {"./train", "--epochs", "5", "a b", ""},
      .environment = {{"KEY", "v"}, {"N", "4"}},
      .directory = "/tmp",
      .needs = {{.gpus = 2, .memory_bytes = uint64_t{20} << 30U, .model = "A100", .cpus = 8},
                {.cpus = 4}},
      .on = "0,2",
      .ranks = 2,
      .after = {"prepare"},
      .priority = -3,
      .retries = 2,
      .back_off = 10s,
      .time_limit = 2h,
      .at = {7, 8},
      .places = {.needs = {11, 9}, .on = {12, 6}, .ranks = {13, 9}}};
  EXPECT_EQ(tasks[1], expected);
}

TEST(Spec, GridInTheOrderOfTheFileLastFastest) {
  const std::vector<Task> tasks = spec(R"(
[[task]]
name = "{z}-{a}"
argv = ["./train", "--z={z}", "{{{a}}}"]
env = { A = "{a}" }
dir = "runs/{z}"
each = { z = [0.10, 1e-4], a = "1..3" }
)");
  EXPECT_THAT(names_of(tasks),
              ElementsAre("0.10-1", "0.10-2", "0.10-3", "1e-4-1", "1e-4-2", "1e-4-3"));
  EXPECT_THAT(tasks[5].argv, ElementsAre("./train", "--z=1e-4", "{3}"));
  EXPECT_EQ(tasks[5].environment.at("A"), "3");
  EXPECT_EQ(tasks[5].directory, "runs/1e-4");
  EXPECT_EQ(tasks[5].parameters, (std::map<std::string, std::string>{{"z", "1e-4"}, {"a", "3"}}));
}

TEST(Spec, ValuesAreWrittenAsInTheFile) {
  const std::vector<Task> tasks = spec(
      "[[task]]\nname='{v}'\nargv=['x']\neach = { v = ['ä', 0x10, 1_000, +5 , true, 0.50, '{x}'] "
      "}");
  EXPECT_THAT(names_of(tasks), ElementsAre("ä", "0x10", "1000", "+5", "true", "0.50", "{x}"));
}

TEST(Spec, DefaultsFillWhatATaskHasNot) {
  const std::vector<Task> tasks = spec(R"(
[defaults]
retries = 3
env = { A = "1", B = "{v}" }
needs = { cpus = 2 }
argv = ["./run", "{v}"]
[[task]]
name = "a{v}"
each = { v = ["x"] }
env = { A = "2" }
[[task]]
name = "b{v}"
each = { v = ["y"] }
retries = 0
argv = ["./own"]
needs = { gpus = 0.5 }
)");
  EXPECT_EQ(tasks[0].retries, 3);
  EXPECT_EQ(tasks[0].environment, (Environment{{"A", "2"}, {"B", "x"}}));
  EXPECT_THAT(tasks[0].argv, ElementsAre("./run", "x"));
  EXPECT_THAT(tasks[0].needs, ElementsAre(TaskNeed{.cpus = 2}));
  EXPECT_EQ(tasks[1].retries, 0);
  EXPECT_EQ(tasks[1].environment, (Environment{{"A", "1"}, {"B", "y"}}));
  EXPECT_THAT(tasks[1].argv, ElementsAre("./own"));
  EXPECT_THAT(tasks[1].needs, ElementsAre(TaskNeed{.gpus = 0.5}));
}

TEST(Spec, NeedsLeftOutAreAGpuOrACoreARank) {
  EXPECT_THAT(spec(one_task("ranks = 4"))[0].needs,
              ElementsAre(TaskNeed{.gpus = 4}, TaskNeed{.cpus = 4, .without_gpus = true}));
  EXPECT_THAT(spec(one_task("ranks = 4\nneeds = { model = 'A100' }"))[0].needs,
              ElementsAre(TaskNeed{.gpus = 4, .model = "A100"}));
}

struct Wrong {
  const char* line;
  const char* error;  // its beginning, without the file
};

// One rank's variables, and those of GPUs that a task may be without, are a spec's own.
TEST(Spec, VariablesThatMusterLeavesAlone) {
  const std::vector<Task> tasks = spec(R"(
[[task]]
name = "a"
argv = ["x"]
env = { RANK = 0, CUDA_VISIBLE_DEVICES = "", MUSTER_GPUS = "0", MUSTER_BACKEND = "gloo" }
)");
  EXPECT_EQ(tasks.at(0).environment.size(), 4U);
}

TEST(Spec, EveryWrongValueIsShownWithItsPlace) {
  const Wrong cases[] = {
      {"nedes = {}",
       "4:1: expected a key of [[task]] (name, argv, each, env, dir, needs, on, ranks, after, "
       "priority, retries, back_off, time_limit), got 'nedes'; did you mean 'needs'?"},
      {"dir = 5", "4:7: expected text for dir, got 5"},
      {"env = ['a']", "4:7: expected a table ({ NAME = \"value\" }) for env, got a list"},
      {"env = { 'A=B' = 1 }",
       "4:9: expected a variable's name in env (letters, digits and '_'), got 'A=B'"},
      {"env = { 'A B' = 1 }",
       "4:9: expected a variable's name in env (letters, digits and '_'), got 'A B'"},
      {"env = { MUSTER_RUN_DIR = 'x' }",
       "4:9: expected no variable in env that muster sets for each task, got MUSTER_RUN_DIR; "
       "leave it out"},
      {"env = { RANK = 1 }\nranks = 2",
       "4:9: expected no variable in env that muster sets for each rank, got RANK; leave it out"},
      {"env = { CUDA_VISIBLE_DEVICES = 0 }\nneeds = { gpus = 1 }",
       "4:9: expected no variable in env that muster sets for the task's GPUs, got "
       "CUDA_VISIBLE_DEVICES; leave it out"},
      {"env = { A = [1] }", "4:13: expected a text or a number for env, got a list"},
      {"env = { A = '{lr}' }",
       "4:14: expected '{{' for a brace, since no parameters are given, got '{lr}'"},
      {"needs = 1", "4:9: expected a table ({ gpus = 1 }) or a list of tables for needs, got 1"},
      {"needs = []", "4:9: expected from one to 16 alternatives in needs, got an empty list"},
      {"needs = { gpus = 0 }",
       "4:18: expected gpus or cpus in needs, got gpus = 0 alone; say how many CPUs"},
      {"on = ''",
       "4:6: expected GPUs for on (\"0,2\", \"model=A100\"), which is left out for any, got ''"},
      {"needs = {}", "4:9: expected gpus or cpus in needs, got neither"},
      {"needs = { gpu = 1 }",
       "4:11: expected a key of needs (gpus, memory, model, cpus), got 'gpu'; did you"},
      {"needs = { gpus = 1.5 }",
       "4:18: expected a whole number up to 4096, or a part of one GPU (from 0.001 "
       "to below 1), for gpus, got 1.5"},
      {"needs = { gpus = -1 }", "4:18: expected a whole number up to 4096"},
      {"needs = { gpus = nan }", "4:18: expected a whole number up to 4096"},
      {"needs = { gpus = '1' }", "4:18: expected a whole number up to 4096"},
      {"needs = { gpus = 0, model = 'A' }",
       "4:18: expected a GPU at least beside memory or model, got 0"},
      {"needs = { gpus = 1, memory = '20 G' }",
       "4:30: expected a size with its unit (\"20GiB\") for memory, got '20 G'"},
      {"needs = { gpus = 1, memory = 20 }", "4:30: expected a size with its unit"},
      {"needs = { gpus = 1, memory = '-1GB' }", "4:30: expected a size with its unit"},
      {"needs = { cpus = 0 }", "4:18: expected a whole number from 1 to 65536 for cpus, got 0"},
      {"ranks = 2\nneeds = { gpus = 3 }", "5:18: expected a multiple of ranks (2) for gpus"},
      {"ranks = 2\nneeds = { gpus = 0.5 }", "5:18: expected a multiple of ranks (2) for gpus"},
      {"on = '0,x3'", "4:9: on: expected an index (3), a range (2-5)"},
      {"on = '0'\nneeds = { cpus = 1 }", "4:6: expected needs with gpus beside on, got '0'"},
      {"ranks = 0", "4:9: expected a whole number from 1 to 4096 for ranks, got 0"},
      {"after = 5", "4:9: expected a list of tasks' names for after, got 5"},
      {"priority = 'high'",
       "4:12: expected a whole number from -1000000 to 1000000 for priority, got 'high'"},
      {"retries = -1", "4:11: expected a whole number from 0 to 1000 for retries, got -1"},
      {"back_off = 10",
       "4:12: expected a duration (\"30s\", \"250ms\", \"5m\", \"1h30m\") for back_off, got 10"},
      {"time_limit = '5 parsecs'", "4:14: expected a duration"},
      {"time_limit = '0s'", "4:14: expected more than no time for time_limit, got '0s'"},
      {"each = 5", "4:8: expected a table ({ lr = [0.1, 0.01] }) for each, got 5"},
      {"each = { lr = [] }",
       "4:15: expected a list of values or a range (\"1..5\") in each, got an empty list"},
      {"each = { lr = 1 }", "4:15: expected a list of values or a range"},
      {"each = { lr = '5..1' }", "4:15: expected a range that counts up, got 5..1"},
      {"each = { lr = [[1]] }",
       "4:16: expected a text or a number for a value in each, got a list"},
      {"each = { 'l r' = [1] }",
       "4:10: expected a parameter's name (letters, digits, '_' and '-'), got 'l r'"},
      {"each = { lr = '1..2000000' }", "4:15: expected at most 1000000 values"},
      {"each = { lr = [1, 2] }",
       "2:8: expected each task's name once, got 'a' twice, for lr=1 and for lr=2"},
      {"dir = \"\\u0000\"", "4:7: expected text without NUL for dir"},
      {"dir = ä", "4:7: expected ASCII outside quotes and comments"},
      {"dir = ", "4:7: expected TOML, got something else: "},
      {"a.b.c.d.e.f.g.h.i.j = 1", "4:18: expected plain keys, got one of many dots"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_THAT(spec_error(one_task(wrong.line)), StartsWith(cat("t.toml:", wrong.error)))
        << wrong.line;
  }
}

TEST(Spec, WrongNamesAndArgv) {
  const auto with = [](const std::string& lines) {
    return spec_error("[[task]]\n" + lines);
  };
  EXPECT_THAT(with("argv = ['x']"), StartsWith("t.toml:1:1: expected name in [[task]], got none"));
  EXPECT_THAT(with("name = 'a'"), StartsWith("t.toml:1:1: expected argv = "));
  EXPECT_THAT(with("name = 'a'\nargv = []"), StartsWith("t.toml:3:8: expected the program"));
  EXPECT_THAT(with("name = 'a'\nargv = 'x y'"), StartsWith("t.toml:3:8: expected the program"));
  EXPECT_THAT(with("name = 'a'\nargv = ['', 'y']"),
              StartsWith("t.toml:3:9: expected a program as argv's"));
  for (const char* const name : {"''", "'a/b'", "'..'", "\"a\\nb\""}) {
    EXPECT_THAT(with(cat("argv = ['x']\nname = ", name)),
                StartsWith("t.toml:3:8: expected a task's name"))
        << name;
  }
  EXPECT_THAT(with(cat("argv = ['x']\nname = '", std::string(201, 'a'), "'")),
              HasSubstr("expected a task's name of at most 200 bytes, got 201"));
  EXPECT_THAT(with("argv = ['x']\nname = '{v}'\neach = { v = ['a', 'b/c'] }"),
              HasSubstr("got 'b/c'"));
}

TEST(Spec, AnUnknownPlaceholderIsShownUnderItsBrace) {
  EXPECT_EQ(
      spec_error("[[task]]\nname = 'a{lr}'\nargv = ['x', \"--lr={rl}\"]\neach = { lr = [1] }\n"),
      "t.toml:3:20: expected a parameter ({lr}) or '{{' for a brace, got '{rl}'; did you mean "
      "'lr'?\n"
      "  argv = ['x', \"--lr={rl}\"]\n"
      "                     ^");
  EXPECT_THAT(spec_error(one_task("dir = 'ää{'")),
              StartsWith("t.toml:4:10: expected '}' after '{'"));
  EXPECT_THAT(spec_error(one_task("dir = 'a}'")),
              StartsWith("t.toml:4:9: expected '}}' for a brace"));
  EXPECT_THAT(
      spec_error("[defaults]\ndir='{x}'\n[[task]]\nname='a'\nargv=['x']\n[[task]]\nname='b'\n"
                 "argv=['x']\n"),
      StartsWith("t.toml:2:6: expected '{{' for a brace"));
}

TEST(Spec, DuplicatesTellBothPlaces) {
  EXPECT_EQ(spec_error("[[task]]\nname = 'a'\nargv = ['x']\n[[task]]\nname = 'a'\nargv = ['x']\n"),
            "t.toml:5:8: expected each task's name once, got 'a' twice; the other is at line 2, "
            "column 8\n"
            "  name = 'a'\n"
            "         ^");
}

TEST(Spec, SeveralErrorsInOneGoInTheOrderOfTheFile) {
  const std::string error = spec_error("[[task]]\nname = 5\nargv = ['x']\nranks = 0\nwhat = 1\n");
  EXPECT_LT(error.find("t.toml:2:8"), error.find("t.toml:4:9"));
  EXPECT_LT(error.find("t.toml:4:9"), error.find("t.toml:5:1"));
  std::string many;
  for (int i = 0; i < 30; ++i)
    many += cat("[[task]]\nname = ", i, "\nargv = ['x']\n");
  const std::string ten = spec_error(many);
  EXPECT_THAT(ten, HasSubstr("t.toml:29:8"));
  EXPECT_THAT(ten, Not(HasSubstr("t.toml:32:8")));
  EXPECT_THAT(ten, HasSubstr("there may be more"));
}

TEST(Spec, WhatIsNoSpecIsAnError) {
  EXPECT_THAT(spec_error(""), StartsWith("t.toml:1:1: expected [[task]] entries, got none"));
  EXPECT_THAT(spec_error("[task]\nname = 'a'"),
              HasSubstr("t.toml:1:1: expected [[task]] entries, each in"));
  EXPECT_THAT(spec_error("task = []"), HasSubstr("expected [[task]] entries"));
  EXPECT_THAT(spec_error("task = [1]"), HasSubstr("t.toml:1:9: expected a table [[task]], got 1"));
  EXPECT_THAT(spec_error("[defaults]\nretry = 2\n[[task]]\nname = 'a'\nargv = ['a']"),
              HasSubstr("got 'retry'; did you mean 'retries'?"));
  EXPECT_THAT(spec_error("[default]\nretries = 2\n[[task]]\nname = 'a'\nargv = ['a']"),
              HasSubstr("got 'default'; did you mean 'defaults'?"));
  EXPECT_THAT(spec_error(one_task("needs = { cpu = 1 }")),
              HasSubstr("got 'cpu'; did you mean 'cpus'?"));
  EXPECT_THAT(spec_error("[[tasks]]\nname='a'"), HasSubstr("did you mean 'task'?"));
  EXPECT_THAT(spec_error("[defaults]\nname = 'a'"),
              HasSubstr("t.toml:2:1: expected a key of [defaults]"));
  EXPECT_THAT(spec_error("# \xff\n"), StartsWith("t.toml:1:3: expected UTF-8"));
  EXPECT_THAT(spec_error("a = '\xc3"), StartsWith("t.toml:1:6: expected UTF-8"));
}

TEST(Spec, TextBeyondAsciiIsFineInQuotesAndComments) {
  EXPECT_EQ(spec("# ä\n[[task]]\nname = \"\\\"ä\" # ö\nargv = ['''ü'ü''', \"\"\"ö\"\"\"\"\"]\n")[0]
                .argv[1],
            "ö\"\"");
}

TEST(Spec, TooManyTasksAreRefusedBeforeTheyAreMade) {
  EXPECT_THAT(spec_error("[[task]]\nname='{a}-{b}'\nargv=['x']\neach={a='1..2000', b='1..2000'}\n"),
              HasSubstr("expected at most 1000000 tasks in all, got more"));
  EXPECT_THAT(spec_error(cat("[[task]]\nname='{a}'\nargv=['x', '",
                             std::string(100'000, 'y'),
                             "']\neach={a='1..100000'}\n")),
              HasSubstr("expected tasks of at most 2048 MiB in all"));
}

TEST(Spec, AHundredThousandTasks) {
  std::string text;
  for (int i = 0; i < 20'000; ++i)
    text += cat("[[task]]\nname='t", i, "'\nargv=['./a']\nafter=['g-1']\n");
  text += "[[task]]\nname='g-{i}'\nargv=['./a','{i}']\neach={i='1..80000'}\n";
  const std::vector<Task> tasks = spec(text);
  EXPECT_EQ(tasks.size(), 100'000U);
  EXPECT_EQ(tasks.back().name, "g-80000");
}

TEST(Spec, AValueTwiceIsToldAsThat) {
  EXPECT_THAT(
      spec_error("[[task]]\nname='{a}'\nargv=['x']\neach={a=[1, 2, 1]}\n"),
      HasSubstr("t.toml:4:16: expected each value once in each, got 1 twice; leave one out"));
  EXPECT_THAT(spec_error("[[task]]\nname='t'\nargv=['x']\neach={a=[1, 2]}\n"),
              HasSubstr("put every parameter of each into the name"));
}

TEST(Spec, WhereNeedsStand) {
  const std::vector<Task> tasks =
      spec("[defaults]\nneeds = { gpus = 1 }\n[[task]]\nname = 'a'\nargv = ['x']\non = '0'\n");
  EXPECT_EQ(tasks[0].places, (NeedPlaces{.needs = {2, 9}, .on = {6, 6}}));
}

TEST(Spec, FilesThatCannotBeRead) {
  const auto error_of = [](const std::string& path) {
    try {
      tasks_of_text(read_spec(path), path);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(
      error_of("/nonexistent/t.toml"),
      "expected a file of tasks, got '/nonexistent/t.toml', which is not there; correct the path");
  EXPECT_THAT(error_of("/tmp"),
              HasSubstr("expected a file of tasks, got '/tmp', which is a folder"));
  EXPECT_EQ(error_of("/dev/zero"),
            "expected a file of tasks, got '/dev/zero', which is neither a file nor a pipe; "
            "correct the path");
  const std::string path = testing::TempDir() + "spec_test_tasks.toml";
  std::ofstream(path) << "#";
  std::filesystem::resize_file(path, (size_t{64} << 20U) + 1);
  EXPECT_THAT(error_of(path), HasSubstr(":1:1: expected a spec of at most 64 MiB, got more; let"));
  std::ofstream(path) << "[[task]]\nname = 'a'\nargv = ['x']\n";
  EXPECT_THAT(names_of(tasks_of_text(read_spec(path), path)), ElementsAre("a"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace muster
