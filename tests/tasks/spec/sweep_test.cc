#include "muster/tasks/spec/sweep.h"

#include <gmock/gmock.h>

#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/tasks/spec/range.h"
#include "muster/tasks/spec/spec.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string sweep_error(const std::vector<std::string>& sweeps,
                        const std::vector<std::string>& command = {"x"}) {
  try {
    tasks_of_sweep({.sweeps = sweeps, .command = command});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "no error";
}

TEST(Sweep, IsWhatASpecWithEachGives) {
  auto from_sweep = tasks_of_sweep({.sweeps = {"lr=0.1,1e-2", "seed=1..3"},
                                    .command = {"./train", "--lr={lr}", "{seed}"},
                                    .common = {.environment = {{"S", "{seed}"}}, .retries = 2}});
  auto from_spec = tasks_of_text(R"(
[[task]]
name = "lr={lr},seed={seed}"
argv = ["./train", "--lr={lr}", "{seed}"]
env = { S = "{seed}" }
retries = 2
each = { lr = [0.1, 1e-2], seed = "1..3" }
)",
                                 "t.toml");
  for (Task& task : from_spec) {
    task.at = {};
    task.places = {};
  }
  EXPECT_EQ(from_sweep, from_spec);
  EXPECT_EQ(from_sweep[4].name, "lr=1e-2,seed=2");
}

TEST(Sweep, RangesAndValuesMix) {
  const auto tasks = tasks_of_sweep({.sweeps = {"n=1..3,9,-1..0,a..b"}, .command = {"{n}"}});
  std::vector<std::string> programs;
  for (const Task& task : tasks)
    programs.push_back(task.argv[0]);
  EXPECT_THAT(programs, ElementsAre("1", "2", "3", "9", "-1", "0", "a..b"));
}

TEST(Sweep, NamesCanBeFiles) {
  const auto tasks = tasks_of_sweep({.sweeps = {"d=/a/b,_a_b,/a_b,1"}, .command = {"x", "{d}"}});
  EXPECT_EQ(tasks[0].name, "d=_a_b");
  EXPECT_EQ(tasks[1].name, "d=_a_b~2");
  EXPECT_EQ(tasks[2].name, "d=_a_b~3");
  EXPECT_EQ(tasks[0].argv[1], "/a/b");
  EXPECT_EQ(tasks[0].parameters.at("d"), "/a/b");
  const std::string longer(300, 'x');
  const auto cut =
      tasks_of_sweep({.sweeps = {"d=" + longer + "1," + longer + "2"}, .command = {"x"}});
  EXPECT_LE(cut[1].name.size(), 200U);
  EXPECT_NE(cut[0].name, cut[1].name);
}

TEST(Sweep, NamesStayDistinctWhateverTheValues) {
  const auto tasks = tasks_of_sweep({.sweeps = {"d=a,a~2,a,a,a~2,a~3"}, .command = {"x"}});
  std::set<std::string> names;
  for (const Task& task : tasks)
    names.insert(task.name);
  EXPECT_EQ(names.size(), 6U);
}

TEST(Sweep, ErrorsPointAtTheCharacter) {
  EXPECT_EQ(sweep_error({"lr=0.1,,2"}),
            "--sweep lr=0.1,,2: expected a value or a range (1..5), got nothing (at character 8)\n"
            "  --sweep lr=0.1,,2\n"
            "                 ^");
  EXPECT_THAT(sweep_error({"lr"}),
              HasSubstr("expected '=' and values, got nothing (at character 3)"));
  EXPECT_THAT(sweep_error({"lr="}),
              HasSubstr("expected a value or a range (1..5), got nothing (at character 4)"));
  EXPECT_THAT(sweep_error({"=1"}), HasSubstr("expected NAME=VALUE,…"));
  EXPECT_THAT(sweep_error({"l r=1"}), HasSubstr("expected NAME=VALUE,…"));
  EXPECT_THAT(sweep_error({"a=1", "a=2"}), HasSubstr("expected each name once, got a again"));
  EXPECT_THAT(sweep_error({"a=1,5..2"}),
              HasSubstr("expected a range that counts up, got 5..2 (at character 5)"));
  for (const char* const piece : {"1..x", "0.1..0.5", "x..9", "1.."}) {
    EXPECT_THAT(sweep_error({cat("a=0,", piece)}),
                StartsWith(cat("--sweep a=0,",
                               piece,
                               ": expected a range of whole numbers, as 1..5, got ",
                               piece,
                               "; ")));
  }
  EXPECT_EQ(tasks_of_sweep({.sweeps = {"a=../1,a..b"}, .command = {"x"}}).size(), 2U);
  EXPECT_THAT(sweep_error({"a=1..2000000"}), HasSubstr("expected at most 1000000 values"));
  EXPECT_THAT(sweep_error({"a=1..2000", "b=1..2000"}), HasSubstr("expected at most 1000000 tasks"));
  EXPECT_THAT(sweep_error({}), HasSubstr("expected NAME=VALUE,…, got none"));
  EXPECT_THAT(sweep_error({"a=1"}, {}), HasSubstr("expected a command"));
}

TEST(Sweep, OneValueIsSaid) {
  std::vector<std::string> warnings;
  tasks_of_sweep({.sweeps = {"lr=0.1;0.01", "seed=1..2"}, .command = {"x", "{lr}", "{seed}"}},
                 &warnings);
  EXPECT_THAT(
      warnings,
      testing::ElementsAre("--sweep lr: has one value, '0.1;0.01'; several are written with "
                           "commas or as a range (1..5)"));
}

TEST(Sweep, ParametersThatNothingUsesAreWarnedOf) {
  std::vector<std::string> warnings;
  tasks_of_sweep({.sweeps = {"lr=0.1,0.2", "seed=1..2"}, .command = {"x", "--lr={lr}"}}, &warnings);
  EXPECT_THAT(warnings,
              testing::ElementsAre(
                  "--sweep seed: the command has no {seed}, so tasks that differ in it alone "
                  "run the same; put {seed} where it belongs"));
  warnings.clear();
  const std::string head =
      "[[task]]\nname = '{a}-{b}-{c}-{d}'\neach = { a = [1], b = [1], c = [1], d = [1] }\n";
  tasks_of_text(head + "argv = ['x{a}']\nenv = { V = '{b}' }\ndir = '{c}'", "t.toml", &warnings);
  EXPECT_THAT(warnings,
              testing::ElementsAre(
                  testing::StartsWith("t.toml:2:8: argv, env and dir have no {d} of each,")));
}

TEST(Sweep, AnUnknownPlaceholderOfTheCommand) {
  EXPECT_EQ(sweep_error({"seed=1", "lr=1"}, {"./train", "ä{sed}"}),
            "command: ä{sed}: expected a parameter ({seed}, {lr}) or '{{' for a brace, got "
            "'{sed}'; did you mean 'seed'? "
            "(at character 2)\n"
            "  command: ä{sed}\n"
            "            ^");
}

TEST(Sweep, LeadingZerosAreKept) {
  EXPECT_THAT(*range_values("01..03"), testing::ElementsAre("01", "02", "03"));
  EXPECT_THAT(*range_values("8..010"), testing::ElementsAre("008", "009", "010"));
  EXPECT_THAT(*range_values("-01..01"), testing::ElementsAre("-01", "000", "001"));
  EXPECT_THAT(*range_values("0..2"), testing::ElementsAre("0", "1", "2"));
  EXPECT_THAT(*range_values("-1..1"), testing::ElementsAre("-1", "0", "1"));
}

}  // namespace
}  // namespace muster
