#include "muster/base/shell.h"

#include <gmock/gmock.h>

namespace muster {
namespace {

TEST(ShellQuoted, IsOneWord) {
  EXPECT_EQ(shell_quoted("/a b/c"), "'/a b/c'");
  EXPECT_EQ(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
}

TEST(ShellCommand, QuotesWhatIsNotPlain) {
  EXPECT_EQ(shell_command({"./train", "--lr=0.1", "a b", ""}), "./train --lr=0.1 'a b' ''");
  EXPECT_EQ(shell_command({"A=b", "c"}), "'A=b' c");  // a program, not an assignment
}

TEST(ShellCommand, IsWhatTheShellRuns) {
  const std::vector<std::string> words = {"printf", "%s|", "a b", "$HOME", "it's", "x=1", "*"};
  EXPECT_EQ(output_of_shell(shell_command(words), "printf"), "a b|$HOME|it's|x=1|*|");
}

}  // namespace
}  // namespace muster
