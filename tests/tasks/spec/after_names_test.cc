#include "muster/tasks/spec/after_names.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "muster/base/strings.h"
#include "tests/tasks/spec/specs.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Task& named(const std::vector<Task>& tasks, const std::string& name) {
  for (const Task& task : tasks) {
    if (task.name == name)
      return task;
  }
  throw std::out_of_range(name);
}

constexpr const char* kTwoGrids = R"(
[[task]]
name = "train-{lr}-{seed}"
argv = ["x"]
each = { lr = [1, 2], seed = [7, 8] }
)";

TEST(Spec, AfterIsThisCombinations) {
  const auto tasks = spec(cat(kTwoGrids,
                              "[[task]]\nname='eval-{lr}-{seed}'\nargv=['x']\n",
                              "each={ seed=[7,8], lr=[1,2] }\nafter=['train-{lr}-{seed}']\n"));
  EXPECT_THAT(named(tasks, "eval-2-7").after, ElementsAre("train-2-7"));
}

TEST(Spec, AfterAnotherTasksNameAsWrittenIsAllOfIt) {
  const auto tasks =
      spec(cat(kTwoGrids, "[[task]]\nname='report'\nargv=['x']\nafter='train-{lr}-{seed}'\n"));
  EXPECT_THAT(named(tasks, "report").after,
              ElementsAre("train-1-7", "train-1-8", "train-2-7", "train-2-8"));
}

TEST(Spec, AfterAnotherTasksNameAsWrittenIsOfTheSameValues) {
  const auto tasks = spec(cat(kTwoGrids,
                              "[[task]]\nname='mean-{lr}'\nargv=['x']\neach={ lr=[1,2] }\n",
                              "after=['train-{lr}-{seed}']\n"));
  EXPECT_THAT(named(tasks, "mean-2").after, ElementsAre("train-2-7", "train-2-8"));
}

TEST(Spec, AfterAGlobIsEveryOtherNameThatFits) {
  const auto tasks =
      spec(cat(kTwoGrids,
               "[[task]]\nname='train-all'\nargv=['x']\n",
               "after=['train-*', 'train-1-7']\n[[task]]\nname='x-{lr}'\nargv=['x']\n",
               "each={lr=[1,2]}\nafter=['train-{lr}-*']\n"));
  EXPECT_THAT(named(tasks, "train-all").after,
              ElementsAre("train-1-7", "train-1-8", "train-2-7", "train-2-8"));
  EXPECT_THAT(named(tasks, "x-1").after, ElementsAre("train-1-7", "train-1-8"));
}

TEST(Spec, AfterErrorsSayWhichNameIsNear) {
  EXPECT_EQ(spec_error(cat(kTwoGrids, "[[task]]\nname='a'\nargv=['x']\nafter=['train-1-9']\n")),
            "t.toml:9:8: expected the name of a task in after, got 'train-1-9'; did you mean "
            "'train-1-7'?\n"
            "  after=['train-1-9']\n"
            "         ^");
  EXPECT_THAT(
      spec_error(cat(kTwoGrids, "[[task]]\nname='a'\nargv=['x']\nafter=['trian-{lr}-{seed}']\n")),
      HasSubstr("got 'trian-{lr}-{seed}'; did you mean 'train-{lr}-{seed}'?"));
  EXPECT_THAT(spec_error(one_task("after = ['*']")),
              HasSubstr("t.toml:4:10: expected the name of some other task"));
  EXPECT_THAT(
      spec_error(cat(kTwoGrids,
                     "[[task]]\nname='a-{lr}'\nargv=['x']\neach={lr=[1,3]}\n",
                     "after=['train-{lr}-{seed}']\n")),
      HasSubstr(
          "t.toml:10:8: expected, in after, tasks 'train-{lr}-{seed}' with the same lr as a-3"));
}

TEST(Spec, CyclesAreShownWhole) {
  const std::string text =
      "[[task]]\nname='c'\nargv=['x']\nafter=['a']\n[[task]]\nname='a'\nargv=['x']\nafter=['b']\n"
      "[[task]]\nname='b'\nargv=['x']\nafter=['a']\n";
  EXPECT_EQ(spec_error(text),
            "t.toml:6:6: expected no cycle in after, got a → b → a\n"
            "  name='a'\n"
            "       ^");
  EXPECT_THAT(spec_error(one_task("after = ['a']")), HasSubstr("got a → a"));
}

TEST(Spec, ALongChainIsNoCycle) {
  std::string text = "[[task]]\nname='t0'\nargv=['x']\n";
  for (int i = 1; i < 3000; ++i)
    text += cat("[[task]]\nname='t", i, "'\nargv=['x']\nafter='t", i - 1, "'\n");
  EXPECT_EQ(spec(text).size(), 3000U);
  EXPECT_THAT(spec_error(cat(text,
                             "[[task]]\nname='y'\nargv=['x']\nafter=['z']\n[[task]]\nname='z'\n",
                             "argv=['x']\nafter=['y', 't2999']\n")),
              HasSubstr("got y → z → y"));
}

TEST(Spec, Globs) {
  EXPECT_TRUE(fits_glob("a*c", "abc"));
  EXPECT_TRUE(fits_glob("*", ""));
  EXPECT_TRUE(fits_glob("*b*b", "abab"));
  EXPECT_FALSE(fits_glob("a*c", "abcd"));
  EXPECT_FALSE(fits_glob("a", "ab"));
  EXPECT_FALSE(fits_glob("a*a", "a"));
}

}  // namespace
}  // namespace muster
